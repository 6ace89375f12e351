"""How far texts are from those of the base model: nats per token, and where and how narrowly they depart."""

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
from eval.statistics import ENOUGH, REFERENCE, Ratio, throughput_ratio

BOUND = 0.02
"""Nats per token within which the paper (arXiv 2606.27550) finds perplexity unchanged."""

_ROWS = 256


@dataclass(frozen=True)
class Losses:
    """One row of a comparison on one prompt set.

    Attributes:
        policy: Its spec.
        texts: How many.
        nats: Negative log-likelihood per token of the continuation under the base model at temperature 1, the
            mean over texts; the logarithm of the perplexity.
        gap: Mean difference of it to autoregressive decoding's, with its paired bootstrap interval.
        same: Texts that are autoregressive decoding's, token for token.
        margins: For each of the others, what the two best tokens were apart by where it departs, in logits;
            under ``sample`` in logits over temperature plus noise, since their best is what is chosen.
    """

    policy: str
    texts: int
    nats: float
    gap: Ratio
    same: int
    margins: tuple[float, ...]

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


def summarise_losses(
    nats: Mapping[str, Sequence[float]],
    margins: Mapping[str, Sequence[float | None]],
    samples: int,
    seed: int,
) -> list[Losses]:
    """Summarise the rows of one prompt set.

    Args:
        nats: Nats per token of each text, by row, prompts in one order; autoregressive decoding is a row.
        margins: Margin of each text at its departure, ``None`` where it does not depart, in the same form.
        samples: Bootstrap resamples.
        seed: Their seed; every row sees the same ones.
    """
    ones = np.ones(len(nats[REFERENCE]))
    found = []
    for policy, own in nats.items():
        difference = np.subtract(own, nats[REFERENCE])
        departing = [margin for margin in margins[policy] if margin is not None]
        found.append(
            Losses(
                policy,
                len(own),
                float(np.mean(own)),
                # A mean is a ratio to ones.
                throughput_ratio(difference, ones, ones, ones, samples, seed),
                len(own) - len(departing),
                tuple(departing),
            )
        )
    return found


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
        """Mean negative log-likelihood of a continuation's tokens."""
        hidden, targets = self._hidden(text), self._ids(text)
        parts = zip(hidden.split(_ROWS), targets.split(_ROWS), strict=True)
        total = sum(
            float(F.cross_entropy(self._backbone.logits(rows).float(), own, reduction="sum"))
            for rows, own in parts
        )
        return total / len(text)

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
