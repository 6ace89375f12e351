"""The texts that heads are evaluated on: replies of the base model, written once and kept on disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.decoding.batch import Request, generate_batch
from entmtp_env.engine import Engine
from entmtp_env.files import atomic_path, parse_json
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import load_prompts
from eval.interleave import draw_prompts


@dataclass(frozen=True)
class Text:
    """A prompt and the base model's reply.

    Attributes:
        prompt_id: Name of the prompt within its set.
        prompt: Token ids.
        reply: Token ids; ends with EOS where the model stopped by itself.
    """

    prompt_id: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True)
class TextSettings:
    """How texts are written.

    Attributes:
        num_prompts: Prompts of a set, the first after a seeded shuffle; 0 = all.
        acceptance: A lossless rule: greedy or sample:temperature=T.
        max_new_tokens: Token cap of a reply.
        seed: Seed of the choice of prompts and of the sampling.

    Raises:
        ValueError: When the rule is unknown or not lossless.
    """

    num_prompts: int
    acceptance: str
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse a rule under which the text depends on the tree."""
        if not make_acceptance(self.acceptance).lossless:
            raise ValueError(
                f"acceptance {self.acceptance!r}: the text would depend on the trees; use greedy or "
                "sample:temperature=T"
            )


def written_texts(engine: Engine, prompts: str, settings: TextSettings, folder: Path) -> list[Text]:
    """The replies to a prompt set, from ``folder`` when they are there, else written now and kept there.

    A file's name depends on everything that the texts depend on.

    Args:
        engine: The base model; its heads play no part.
        prompts: Prompt set, as :func:`entmtp_env.prompts.load_prompts` takes it.
        settings: How to write.
        folder: Cache folder.

    Returns:
        The texts in the order of the seeded shuffle.

    Raises:
        FileNotFoundError: When there is no such prompt file.
        ValueError: When the prompt set is unknown, or a prompt does not fit into the model.
    """
    by_id = {prompt.prompt_id: prompt for prompt in load_prompts(prompts)}
    seeds = draw_prompts(list(by_id.values()), settings.num_prompts, settings.seed)
    encoded = {prompt_id: tuple(engine.encode(by_id[prompt_id])) for prompt_id in seeds}
    longest = engine.backbone.config.max_positions - settings.max_new_tokens
    for prompt_id, tokens in encoded.items():
        if len(tokens) > longest:
            raise ValueError(
                f"prompt {prompt_id!r} of {prompts} has {len(tokens)} tokens; with {settings.max_new_tokens} "
                f"new ones the model takes {longest}: shorten it, leave it out, or lower max_new_tokens"
            )
    model = (engine.manifest["model_fingerprint"], engine.manifest["dtype"], sorted(engine.eos_token_ids))
    key = repr((model, settings.acceptance, settings.max_new_tokens, seeds, encoded))
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsonl.gz"
    texts = _read(path)
    if texts is None or [text.prompt for text in texts] != list(encoded.values()):
        requests = [
            Request(tokens, make_acceptance(settings.acceptance), seeds[prompt_id])
            for prompt_id, tokens in encoded.items()
        ]
        replies = _write(engine, requests, prompts, settings.max_new_tokens)
        texts = [
            Text(*item, reply=tuple(reply)) for item, reply in zip(encoded.items(), replies, strict=True)
        ]
        rows = [{"id": text.prompt_id, "p": text.prompt, "g": text.reply} for text in texts]
        with atomic_path(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return texts


def _write(engine: Engine, requests: Sequence[Request], prompts: str, max_new_tokens: int) -> list[list[int]]:
    replies: list[list[int]] = [[]] * len(requests)
    with progress_bar() as bar:
        task = bar.add_task(f"writing texts, {prompts}", total=len(requests))
        for index, reply in generate_batch(
            engine.backbone, requests, max_new_tokens=max_new_tokens, eos_token_ids=engine.eos_token_ids
        ):
            replies[index] = reply
            bar.advance(task)
    return replies


def _read(path: Path) -> list[Text] | None:
    """The texts of a file; ``None`` when it is missing or damaged, so that it is written again."""
    try:
        with gzip.open(path, "rb") as file:
            rows = [parse_json(line, str(path)) for line in file]
        return [Text(row["id"], tuple(row["p"]), tuple(row["g"])) for row in rows]
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None
