"""Recording: texts, once written, are read again by base model and draft heads in batched passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.acceptance import AcceptanceRule, make_acceptance
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.batch import Request
from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.noise import noise_seed
from entmtp_env.decoding.ranks import token_ranks
from entmtp_env.decoding.teacher_forcing import like_lengths, root_states
from entmtp_env.engine import Engine
from entmtp_env.replay.candidates import check_candidates, path_values
from entmtp_env.replay.recording import RecordedText, Recording
from entmtp_env.token_shapes import TokenShapes
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree

Array = npt.NDArray[Any]

_TOKENS_PER_PASS = 4096
# A block's logits over the whole vocabulary stay small.
_ROWS = 128


@dataclass(frozen=True)
class Text:
    """A text to record.

    Attributes:
        prompt_id: A name unique among the texts.
        prompt: Token ids of the prompt.
        seed: Key of the sampling noise.
        reply: Token ids of the reply, as the rule alone writes it; one at least.
        hidden: The base's hidden states of prompt and reply, ``(tokens, hidden_size)``, when they are known.
    """

    prompt_id: str
    prompt: tuple[int, ...]
    seed: int
    reply: tuple[int, ...] = ()
    hidden: Tensor | None = None


def text_seed(seed: int, prompt_id: str, prompt: Sequence[int]) -> int:
    """Key of a text's sampling noise.

    Args:
        seed: Seed of the run.
        prompt_id: The prompt.
        prompt: Its token ids; they count, so that a recording tells another prompt of the same name.
    """
    return noise_seed(f"{seed} {prompt_id} {list(prompt)}")


def recordable_rule(acceptance: str, approximate: bool = False) -> AcceptanceRule:
    """The acceptance rule of a recording.

    Args:
        acceptance: Spec of the rule.
        approximate: Take one, too, whose text depends on the trees.

    Raises:
        ValueError: When the rule is unknown, or its text depends on the trees and ``approximate`` is false.
    """
    rule = make_acceptance(acceptance)
    if not rule.lossless and not approximate:
        raise ValueError(
            f"under {acceptance!r} the text depends on the trees, so a recording of one text replays other "
            "schedules only approximately; ask for that (approximate), or record 'greedy' or 'sample'"
        )
    return rule


@dataclass(frozen=True)
class Recorder:
    """Records texts that the base model wrote.

    The base's hidden states are those of the writing where a text brings them, else those of a batched pass.

    Attributes:
        engine: Model, heads and tokenizer.
        acceptance: Spec of the rule that chose the tokens.
        max_new_tokens: Token cap of the replies.
        candidates: The tree whose path values are kept at every root.
        approximate: Take a rule, too, whose text depends on the trees (``typical``); the autoregressive
            text is recorded then, and the recording says that it is an approximation.

    Raises:
        ValueError: When the rule is refused, or the heads cannot draft the candidates.
    """

    engine: Engine
    acceptance: str = "greedy"
    max_new_tokens: int = 256
    candidates: DraftTree = AUTOREGRESSIVE
    approximate: bool = False

    def __post_init__(self) -> None:
        """Check that such a recording can be made."""
        recordable_rule(self.acceptance, self.approximate)
        check_candidates(self.engine.heads, self.candidates)

    @property
    def manifest(self) -> dict[str, Any]:
        """What every recording by this recorder depends on."""
        return {
            **self.engine.manifest,
            "acceptance": self.acceptance,
            "max_new_tokens": self.max_new_tokens,
            "approximate": not self._rule().lossless,
        }

    def request(self, text: Text) -> Request:
        """What to ask of :func:`~entmtp_env.decoding.batch.generate_batch` for the reply.

        Raises:
            ValueError: When prompt and reply would not fit into the model.
        """
        # The token that would follow a reply has a position, too.
        needed = len(text.prompt) + self.max_new_tokens + 1
        positions = self.engine.backbone.config.max_positions
        if needed > positions:
            raise ValueError(
                f"prompt {text.prompt_id!r} of {len(text.prompt)} tokens needs {needed} positions with "
                f"max_new_tokens={self.max_new_tokens}, and the model has {positions}; lower max_new_tokens "
                "or leave the prompt out"
            )
        return Request(text.prompt, self._rule(), text.seed)

    @torch.inference_mode()
    def record(self, texts: Sequence[Text]) -> Recording:
        """Record texts.

        The manifest's ``consistency`` is the share of reply tokens that the rule chooses again. It is 1 in
        float32. In shorter types batches of another size round differently, and may prefer the other of two
        tokens that are as good as tied.

        Args:
            texts: One or more, in the order that the recording is to have.

        Raises:
            ValueError: When a text has no reply, two share an id, or one is too long for the model.
        """
        if empty := [text.prompt_id for text in texts if not text.reply]:
            raise ValueError(f"texts without a reply cannot be recorded: {', '.join(empty)}")
        rows: dict[int, dict[str, Array]] = {}
        for batch in like_lengths([len(text.prompt) + len(text.reply) for text in texts], _TOKENS_PER_PASS):
            rows.update(zip(batch, self._read([texts[i] for i in batch]), strict=True))
        arrays = {name: np.concatenate([rows[i][name] for i in range(len(texts))]) for name in rows[0]}
        lengths = [len(text.reply) for text in texts]
        other_choices = int((arrays.pop("choices") != arrays["tokens"]).sum())
        unique, place = np.unique(arrays["tokens"], return_inverse=True)
        shapes_of = TokenShapes(self.engine.tokenizer)
        shapes = np.array([shapes_of[token] for token in unique.tolist()])
        return Recording(
            manifest={**self.manifest, "consistency": 1 - other_choices / sum(lengths)},
            texts=tuple(map(self._described, texts)),
            offsets=np.cumsum([0, *(length + 1 for length in lengths)], dtype=np.int64),
            root_shape=shapes[place],
            candidates=DraftTree("candidates", self.candidates.nodes),
            **arrays,
        )

    def _read(self, texts: Sequence[Text]) -> Iterator[dict[str, Array]]:
        """The rows of texts read in one pass, and under ``choices`` what the rule chooses there."""
        backbone, heads = self.engine.backbone, self.engine.heads
        known = [text.hidden for text in texts if text.hidden is not None]
        if len(known) == len(texts):
            hidden = pad_sequence(known, batch_first=True)
        else:
            whole = [(*text.prompt, *text.reply) for text in texts]
            hidden = backbone.forward_batch(_padded(whole, backbone))
        choices, signals = [], []
        for text, own in zip(texts, hidden, strict=True):
            start = len(text.prompt)
            rule = self._rule()
            rule.start(text.seed)
            chosen, *base = _base_rows(backbone, rule, own[start - 1 : start + len(text.reply)], start)
            choices.append(chosen)
            signals.append(base)
        # The token that would follow is a root, too; what the base makes of it is read nowhere.
        tokens = [(*text.reply, int(chosen[-1])) for text, chosen in zip(texts, choices, strict=True)]
        whole = [(*text.prompt, *own) for text, own in zip(texts, tokens, strict=True)]
        padded, hidden = _padded(whole, backbone), F.pad(hidden, (0, 0, 0, 1))
        column = torch.arange(padded.shape[1], device=backbone.device)
        starts, ends = (
            torch.tensor(edges, device=backbone.device)[:, None]
            for edges in ([len(text.prompt) for text in texts], list(map(len, whole)))
        )
        roots = (column >= starts) & (column < ends)
        ranks, head_top1, head_entropy = token_ranks(heads, padded, hidden, roots)
        values = path_values(heads, root_states(heads, hidden, roots), padded[roots], self.candidates)
        joined = {
            "tokens": padded[roots].int(),
            "choices": torch.cat(choices).int(),
            "ranks": ranks,
            "base_top1": torch.cat([top1 for top1, _ in signals]),
            "base_entropy": torch.cat([entropy for _, entropy in signals]),
            "head_top1": head_top1,
            "head_entropy": head_entropy,
            "path_values": values.half(),
        }
        arrays = {name: rows.cpu().numpy() for name, rows in joined.items()}
        edges = np.cumsum(list(map(len, tokens)))
        for own, end in zip(tokens, edges, strict=True):
            yield {name: rows[end - len(own) : end] for name, rows in arrays.items()}

    def _described(self, text: Text) -> RecordedText:
        ended = text.reply[-1] in self.engine.eos_token_ids
        capped = len(text.reply) == self.max_new_tokens
        return RecordedText(
            prompt_id=text.prompt_id,
            prompt_tokens=len(text.prompt),
            seed=text.seed,
            finish_reason="eos" if ended else "length" if capped else "context",
            text=self.engine.decode(list(text.reply)),
        )

    def _rule(self) -> AcceptanceRule:
        return recordable_rule(self.acceptance, self.approximate)


def _padded(texts: Sequence[tuple[int, ...]], backbone: Backbone) -> Tensor:
    return pad_sequence(list(map(torch.tensor, texts)), batch_first=True).to(backbone.device)


def _base_rows(
    backbone: Backbone, rule: AcceptanceRule, hidden: Tensor, position: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the base says behind each row: the rule's choice, top-1 probability, and entropy / ln V.

    Args:
        backbone: The base model.
        rule: Started on the text.
        hidden: Consecutive hidden states of a text, ``(rows, hidden_size)``.
        position: Absolute position of the token that the first row predicts.
    """
    blocks = []
    for rows in hidden.split(_ROWS):
        logits = backbone.logits(rows)
        chosen = rule.choose(logits, range(position, position + len(rows)))
        blocks.append((chosen, *certainty(logits)))
        position += len(rows)
    chosen, top1, entropy = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return chosen, top1, entropy
