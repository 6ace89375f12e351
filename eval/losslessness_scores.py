"""How far texts are from those of the base model: in nats, where they depart, and what they repeat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.acceptance import AcceptanceRule, SampleRule
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.noise import gumbel_noise
from eval.statistics import ENOUGH, REFERENCE, Ratio, rate_gap

BOUND = 0.02
"""Nats per token within which the paper (arXiv 2606.27550) finds perplexity unchanged."""

RUN_WORDS = 4
"""Words of a run that may occur before in the same text."""

_ROWS = 256


@dataclass(frozen=True)
class TextScore:
    """One text.

    Attributes:
        nats: Negative log-likelihood under the base model at temperature 1, over all tokens.
        tokens: How many.
        margin: What the two best tokens were apart by where it departs from autoregressive decoding's, in
            logits; under ``sample`` in logits over temperature plus noise, since their best is what is
            chosen; ``None`` where it does not depart.
        repeated: Of its runs of words, how many occurred before in it.
        runs: How many runs it has.
    """

    nats: float
    tokens: int
    margin: float | None
    repeated: int
    runs: int


@dataclass(frozen=True)
class Losses:
    """One row of a comparison on one prompt set.

    Attributes:
        policy: Its spec.
        texts: How many.
        nats: Negative log-likelihood per token under the base model at temperature 1, Σ nats / Σ tokens: the
            logarithm of the perplexity of the texts.
        gap: Its difference to autoregressive decoding's, with its paired bootstrap interval.
        same: Texts that are autoregressive decoding's, token for token.
        margins: Of each of the others, where it departs.
        repeated: Share of the runs of :data:`RUN_WORDS` words that occurred before in the same text,
            Σ repeated / Σ runs.
        repeated_gap: Its difference to autoregressive decoding's, with its paired bootstrap interval.
    """

    policy: str
    texts: int
    nats: float
    gap: Ratio
    same: int
    margins: tuple[float, ...]
    repeated: float
    repeated_gap: Ratio

    @property
    def median_margin(self) -> float:
        """Median of the margins, of which there must be one."""
        return float(np.median(self.margins))

    @property
    def verdict(self) -> str:
        """Whether the gap is within :data:`BOUND`: ``holds``, ``does not hold`` or ``undecided``."""
        ends = [self.gap.low, self.gap.high]
        # Of texts that are all the same there is nothing to estimate.
        if None in ends or self.same < self.texts < ENOUGH:
            return "undecided"
        low, high = (float(end or 0) for end in ends)
        if -BOUND <= low <= high <= BOUND:
            return "holds"
        return "does not hold" if low > BOUND or high < -BOUND else "undecided"


def summarise_losses(scores: Mapping[str, Sequence[TextScore]], samples: int, seed: int) -> list[Losses]:
    """Summarise the rows of one prompt set.

    Args:
        scores: Scores of the texts, by row, prompts in one order; autoregressive decoding is a row.
        samples: Bootstrap resamples.
        seed: Their seed; every row sees the same ones.
    """
    found = []
    for policy, own in scores.items():
        departing = tuple(text.margin for text in own if text.margin is not None)
        nats, tokens, repeated, runs = _columns(own)
        other_nats, other_tokens, other_repeated, other_runs = _columns(scores[REFERENCE])
        found.append(
            Losses(
                policy,
                len(own),
                sum(nats) / sum(tokens),
                rate_gap(nats, tokens, other_nats, other_tokens, samples, seed),
                len(own) - len(departing),
                departing,
                sum(repeated) / max(sum(runs), 1),
                rate_gap(repeated, runs, other_repeated, other_runs, samples, seed),
            )
        )
    return found


def _columns(scores: Sequence[TextScore]) -> tuple[list[float], list[int], list[int], list[int]]:
    return (
        [text.nats for text in scores],
        [text.tokens for text in scores],
        [text.repeated for text in scores],
        [text.runs for text in scores],
    )


def repetitions(text: str) -> tuple[int, int]:
    """How many runs of :data:`RUN_WORDS` consecutive words occurred before in a text, and how many it has."""
    words = text.split()
    runs = [tuple(words[at : at + RUN_WORDS]) for at in range(len(words) - RUN_WORDS + 1)]
    return len(runs) - len(set(runs)), len(runs)


def departure(text: Sequence[int], reference: Sequence[int]) -> int | None:
    """Index of the first token in which two texts differ, or at which one has ended; ``None`` when equal."""
    if text == reference:
        return None
    pairs = enumerate(zip(text, reference, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(text), len(reference)))


class TextScorer:
    """Teacher-forced passes of the base model over continuations of one prompt, which is read once.

    Args:
        backbone: The base model.
        prompt: Token ids.
        rule: How the texts were chosen.
        noise_seed: Key of the rule's randomness.
        longest: Tokens of the longest continuation.
    """

    @torch.inference_mode()
    def __init__(
        self, backbone: Backbone, prompt: Sequence[int], rule: AcceptanceRule, noise_seed: int, longest: int
    ) -> None:
        self._backbone, self._rule, self._noise_seed = backbone, rule, noise_seed
        self._cache = backbone.new_cache(len(prompt) + longest)
        self._last = backbone.forward(self._ids(prompt), self._cache)[-1:]
        self._cache.keep(list(range(len(prompt))))

    @torch.inference_mode()
    def nats(self, text: Sequence[int]) -> float:
        """Negative log-likelihood of a continuation, over all its tokens."""
        hidden, targets = self._hidden(text), self._ids(text)
        parts = zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True)
        return sum(
            float(F.cross_entropy(self._backbone.logits(rows).float(), own, reduction="sum"))
            for rows, own in parts
        )

    @torch.inference_mode()
    def margin(self, text: Sequence[int]) -> float:
        """What the two best tokens behind a continuation are apart by, in what the rule takes the best of."""
        hidden = torch.cat((self._last, self._forward(text))) if text else self._last
        scores = self._backbone.logits(hidden[-1:])[0].float()
        if isinstance(self._rule, SampleRule):
            noise = gumbel_noise(self._noise_seed, self._cache.length + len(text), len(scores))
            scores = scores / self._rule.temperature + torch.from_numpy(noise).to(scores.device)
        best, second = scores.topk(2).values.tolist()
        return best - second

    def _hidden(self, text: Sequence[int]) -> Tensor:
        """What each token of a continuation was predicted from, ``(len(text), hidden_size)``."""
        return torch.cat((self._last, self._forward(text[:-1]))) if len(text) > 1 else self._last

    def _forward(self, tokens: Sequence[int]) -> Tensor:
        return self._backbone.forward(self._ids(tokens), self._cache)

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(list(tokens), device=self._backbone.device)
