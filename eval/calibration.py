"""Calibration of the draft heads: whether they are right as often as they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.ranks import NO_TOKEN, TokenRanks

BINS = 15


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram (Guo et al. 2017, arXiv 1706.04599), with bins of equal mass.

    Attributes:
        stated: Mean probability in each bin, ascending.
        observed: Share of right ones in each bin.
        error: Expected calibration error, Σ share of the bin · |observed - stated|.
        count: Predictions in all.
    """

    stated: list[float]
    observed: list[float]
    error: float
    count: int


def reliability(
    stated: npt.NDArray[np.floating], right: npt.NDArray[np.bool_], bins: int = BINS
) -> Reliability:
    """Compare probabilities with what happened.

    Args:
        stated: Probabilities, ``(n,)``.
        right: What happened, ``(n,)``.
        bins: Bins of equal mass; fewer when there are fewer predictions.

    Returns:
        The diagram; empty, with error 0, without predictions.
    """
    order = np.argsort(stated, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    means = [(float(stated[part].mean()), float(right[part].mean())) for part in parts]
    error = sum(len(part) * abs(p - q) for part, (p, q) in zip(parts, means, strict=True))
    return Reliability([p for p, _ in means], [q for _, q in means], error / max(1, len(order)), len(order))


@dataclass(frozen=True)
class Calibration:
    """Calibration of one set of heads.

    Attributes:
        confidence: Per depth: the best candidate's probability against how often it is the true token, where
            the greedy chain before it was right.
        path_value: Per depth: the product of the probabilities down the greedy chain against how often the
            whole chain was right.
    """

    confidence: list[Reliability]
    path_value: list[Reliability]


def calibration(texts: Sequence[TokenRanks]) -> Calibration:
    """Measure the calibration of heads on texts, at every position that has a token to predict."""
    ranks = np.concatenate([text.ranks for text in texts])
    stated = np.concatenate([text.confidence for text in texts]).astype(np.float64)
    right = np.logical_and.accumulate(ranks == 0, axis=1)
    values = np.cumprod(stated, axis=1)
    confidence, path_value = [], []
    for depth in range(ranks.shape[1]):
        known = ranks[:, depth] != NO_TOKEN
        reached = known & (right[:, depth - 1] if depth else True)
        confidence.append(reliability(stated[reached, depth], right[reached, depth]))
        path_value.append(reliability(values[known, depth], right[known, depth]))
    return Calibration(confidence, path_value)
