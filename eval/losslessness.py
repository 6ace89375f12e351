"""``python -m eval losslessness RESULT_DIR``: what the base model says of the texts of a comparison."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import tyro
from gymnasium.utils import seeding
from rich.console import Console

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.precision import choose_device, choose_dtype
from entmtp_env.files import read_json, write_text_atomically
from entmtp_env.models import load_pretrained
from entmtp_env.progress import progress_bar
from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.prompts import Prompt, encode_prompt
from eval.losslessness_scores import Losses, TextScore, TextScorer, departure, repetitions, summarise_losses
from eval.losslessness_table import LEGEND, losslessness_table
from eval.results import LOSSLESSNESS
from eval.scored_prompts import recorded_prompts
from eval.statistics import REFERENCE, Ratio
from eval.stored import StoredResults, StoredRun, load_results


@dataclass(frozen=True)
class Losslessness:
    """Score the texts of a comparison under its base model.

    Prints, for each row of each prompt set, nats per token and their difference to autoregressive decoding's,
    how many texts are autoregressive decoding's token for token, how narrow the choice was where the others
    depart: a lossless rule departs at near-ties only; and how much the texts repeat themselves. Writes
    losslessness.json into the folder, where "python -m eval report" and "python -m eval paper --resume" find
    it.

    Example: python -m eval losslessness runs/paper-20260101-120000

    Attributes:
        results: Folder that "python -m eval compare" or "python -m eval paper" wrote; of a run that was cut
            short, the prompts that all policies have finished are scored.
        dtype: Element type of the scoring pass: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
    """

    results: Annotated[Path, tyro.conf.Positional]
    dtype: str = "float32"
    device: str = "auto"


def losslessness(config: Losslessness) -> dict[str, list[Losses]]:
    """Score the texts, print the tables and write the file.

    Returns:
        Losses by prompt set.

    Raises:
        ValueError: When a file of the folder is damaged or has no token ids, no prompt was finished by all
            policies, or the model or the prompts are not those of the comparison.
        FileNotFoundError: When the folder, the model or a prompt file is missing.
    """
    results = load_results(config.results)
    sets = results.sets()
    if not sets:
        raise ValueError(f"{results.path}: no prompt was finished by all policies; run the comparison on")
    # Before the model is loaded: not every comparison has token ids, and prompts may have been edited.
    texts = {
        prompts: {policy: [_tokens(own) for own in runs] for policy, runs in policies.items()}
        for prompts, policies in sets.items()
    }
    loaded = {prompts: recorded_prompts(results, prompts) for prompts in sets}
    pretrained = load_pretrained(results.settings["model"])
    _check_model(results, pretrained.fingerprint)
    device = choose_device(config.device)
    backbone = Backbone(pretrained.model, choose_dtype(config.dtype, device), device)
    found = {}
    with progress_bar() as bar:
        task = bar.add_task("prompts", total=sum(len(policies[REFERENCE]) for policies in sets.values()))
        for prompts, policies in sets.items():
            bar.update(task, description=prompts)
            scored: dict[str, list[TextScore]] = {policy: [] for policy in policies}
            scorers = _scorers(
                results, prompts, loaded[prompts], policies[REFERENCE], pretrained.tokenizer, backbone
            )
            by_prompt = (zip(*own.values(), strict=True) for own in (policies, texts[prompts]))
            for scorer, runs, replies in zip(scorers, *by_prompt, strict=True):
                nats = {reply: scorer.nats(reply) for reply in set(replies)}
                reference = replies[list(policies).index(REFERENCE)]
                for policy, own, reply in zip(policies, runs, replies, strict=True):
                    at = departure(reply, reference)
                    margin = None if at is None else scorer.margin(reply[:at])
                    words = repetitions(own.run.episode.text)
                    scored[policy].append(TextScore(nats[reply], len(reply), margin, *words))
                bar.advance(task)
            samples, seed = results.settings["bootstrap_samples"], results.settings["seed"]
            found[prompts] = summarise_losses(scored, samples, seed)
    document = {
        "texts": _fingerprint(results.path),
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "device": str(device),
        "sets": {prompts: [dataclasses.asdict(row) for row in rows] for prompts, rows in found.items()},
    }
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    write_text_atomically(results.path / LOSSLESSNESS, text)
    console = Console(width=None if sys.stdout.isatty() else 100)
    for prompts, rows in found.items():
        console.print(losslessness_table(prompts, rows))
    console.print(LEGEND, highlight=False, markup=False)
    return found


def load_losslessness(path: Path) -> Mapping[str, Sequence[Losses]]:
    """What was scored of a result folder, by prompt set; nothing when it has not been.

    Raises:
        ValueError: When the file is damaged, or other texts were scored than are there now.
    """
    file = path / LOSSLESSNESS
    if not file.is_file():
        return {}
    document = read_json(file)
    try:
        texts = document["texts"]
        sets = {prompts: [_row(row) for row in rows] for prompts, rows in document["sets"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} is damaged or of an earlier version ({error!r}); run 'python -m eval losslessness' again"
        ) from error
    if texts != _fingerprint(path):
        raise ValueError(f"{file} is of other texts; run 'python -m eval losslessness {path}' again")
    return sets


def _scorers(
    results: StoredResults,
    name: str,
    prompts: Sequence[Prompt],
    runs: Sequence[StoredRun],
    tokenizer: Any,
    backbone: Backbone,
) -> Iterator[TextScorer]:
    """One for the prompt of each run."""
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    for own in runs:
        prompt_id = own.run.episode.prompt_id
        # As the environment draws it when it is reset.
        queue, rng = PromptQueue(list(by_id), name), seeding.np_random(own.run.seed)[0]
        _, noise_seed = queue.draw(rng, {"prompt_id": prompt_id})
        yield TextScorer(
            backbone,
            encode_prompt(tokenizer, by_id[prompt_id]),
            make_acceptance(results.settings["acceptance"]),
            noise_seed,
            results.settings["max_new_tokens"],
        )


def _row(row: dict[str, Any]) -> Losses:
    gaps = {name: Ratio(**row[name]) for name in ("gap", "repeated_gap")}
    parts = row | gaps | {"margins": tuple(row["margins"])}
    numbers = (row["nats"], row["texts"], row["repeated"], *parts["margins"])
    if not all(isinstance(number, (int, float)) for number in numbers):
        raise TypeError("not a number")
    return Losses(**parts)


def _tokens(own: StoredRun) -> tuple[int, ...]:
    tokens = tuple(chain.from_iterable(detail.token_ids for detail in own.run.details))
    if len(tokens) != own.run.episode.tokens:
        raise ValueError(
            f"{own.label}: steps.jsonl has {len(tokens)} token ids of {own.run.episode.tokens} tokens; only "
            "a comparison in an environment that tells them can be scored"
        )
    return tokens


def _check_model(results: StoredResults, fingerprint: str) -> None:
    for environments in results.manifest["environments"].values():
        for environment in environments.values():
            if environment.get("model_fingerprint") != fingerprint:
                raise ValueError(
                    f"{results.path} was made with other weights of {results.settings['model']!r} than those "
                    "here; score it with the same"
                )


def _fingerprint(path: Path) -> str:
    """Hash of what was scored, the steps' tokens, and of the texts beside them."""
    digest = hashlib.sha256()
    for name in ("episodes.jsonl", "steps.jsonl"):
        digest.update((path / name).read_bytes())
    return digest.hexdigest()[:16]
