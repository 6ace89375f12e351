"""Texts by the decoder and by transformers, on the same weights, prompt by prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.interleaved import Finding
from entmtp_env.decoding import TreeDecoder
from entmtp_env.engine import Engine
from entmtp_env.trees import DraftTree

TRANSFORMERS = "transformers generate"
_WARM_UP = 8

Write = Callable[[list[int], int], list[int]]
"""Writes the text behind a prompt, up to a token cap; all are token ids."""


@dataclass(frozen=True)
class Generation:
    """What each way to write needed for the same prompts; prefill counts.

    Attributes:
        names: ``TRANSFORMERS``, then the trees; W in all.
        tokens: Tokens of the texts, ``(W, prompts)``.
        seconds: Seconds from a prompt's token ids to its text's, ``(W, prompts)``.
        same_texts: How many texts equal those of transformers, ``(W,)``.
        autoregressive: Name of the empty tree.
    """

    names: tuple[str, ...]
    tokens: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    same_texts: npt.NDArray[np.int64]
    autoregressive: str

    @property
    def speed_ups(self) -> npt.NDArray[np.float64]:
        """Σ tokens ÷ Σ seconds, over that of transformers, ``(W,)``."""
        rates = self.tokens.sum(1) / self.seconds.sum(1)
        return rates / rates[0]

    @property
    def best_tree(self) -> str:
        """The tree with the largest speed-up, of those that draft."""
        plain = (TRANSFORMERS, self.autoregressive)
        drafting = (pair for pair in zip(self.speed_ups, self.names, strict=True) if pair[1] not in plain)
        return max(drafting)[1]

    def findings(self) -> list[Finding]:
        """Speed-ups of all texts together, with quartiles over prompts."""
        rates = self.tokens / self.seconds
        goals = {self.autoregressive: "≥ 1.8", self.best_tree: "≥ 2.7"}
        found = [Finding.of("generation", TRANSFORMERS, rates[0], "tok/s")]
        for w, name in list(enumerate(self.names))[1:]:
            lower, upper = np.quantile(rates[w] / rates[0], (0.25, 0.75)).tolist()
            label = f"{name} ÷ transformers ({self.same_texts[w]} of {len(rates[w])} texts the same)"
            value = float(self.speed_ups[w])
            found.append(Finding("generation", label, value, lower, upper, goal=goals.get(name, "")))
        return found


def generate(
    engine: Engine,
    model: Any,
    trees: Sequence[DraftTree],
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    advance: Callable[[], None],
) -> Generation:
    """Write every prompt's text in every way, greedily; the ways take turns in a random order.

    Args:
        engine: The decoder's model.
        model: ``transformers.PreTrainedModel`` with the same weights and element type.
        trees: Each decodes all texts; the empty one and another are among them.
        prompts: Token ids.
        max_new_tokens: Token cap of a text.
        advance: Called after every text.

    Raises:
        ValueError: When a prompt and its text do not fit into the model beside the largest tree.
    """
    max_nodes = max(map(len, trees))
    decoder = TreeDecoder(
        engine.backbone,
        engine.heads,
        capacity=max(map(len, prompts)) + max_new_tokens + max_nodes + 1,
        eos_token_ids=engine.eos_token_ids,
        max_nodes=max_nodes,
    )
    ways = [_transformers(model, sorted(engine.eos_token_ids)), *(_decoder(decoder, tree) for tree in trees)]
    shape = (len(ways), len(prompts))
    tokens, seconds = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    same = np.zeros(len(ways), dtype=np.int64)
    for way in ways:
        way(prompts[0], min(_WARM_UP, max_new_tokens))
    rng = np.random.default_rng(0)
    for p, prompt in enumerate(prompts):
        texts: dict[int, list[int]] = {}
        for w in rng.permutation(len(ways)).tolist():
            begin = time.perf_counter()
            texts[w] = ways[w](prompt, max_new_tokens)
            seconds[w, p], tokens[w, p] = time.perf_counter() - begin, len(texts[w])
            advance()
        same += [texts[w] == texts[0] for w in range(len(ways))]
    names = [tree.name for tree in trees]
    return Generation((TRANSFORMERS, *names), tokens, seconds, same, min(trees, key=len).name)


def _transformers(model: Any, eos: list[int]) -> Write:
    @torch.inference_mode()
    def write(prompt: list[int], cap: int) -> list[int]:
        tokens = torch.tensor([prompt])
        written = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=cap,
            do_sample=False,
            repetition_penalty=1.0,
            eos_token_id=eos or None,
            pad_token_id=eos[0] if eos else 0,
        )
        return written[0, len(prompt) :].tolist()

    return write


def _decoder(decoder: TreeDecoder, tree: DraftTree) -> Write:
    def write(prompt: list[int], cap: int) -> list[int]:
        decoder.start(prompt, max_new_tokens=cap)
        while not decoder.finish_reason:
            decoder.step(tree)
        return decoder.tokens

    return write
