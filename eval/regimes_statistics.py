"""Correlation and AUROC over steps, with bootstrap intervals over generations.

The steps of a text are alike, so whole generations are drawn, never single steps. A statistic is computed
under many *weights*, how often each generation counts; the first row counts each once and gives the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 95 % interval, the 2.5 to 97.5 percentiles of the bootstrap."""

    value: float
    low: float
    high: float


def draw_weights(generations: int, samples: int, seed: int) -> Floats:
    """How often each generation counts: once each, then as often as drawn with replacement.

    Args:
        generations: G.
        samples: S, bootstrap resamples.
        seed: Their seed.

    Returns:
        ``(S + 1, G)``.
    """
    shares = np.full(generations, 1 / generations)
    drawn = np.random.default_rng(seed).multinomial(generations, shares, size=samples)
    return np.concatenate([np.ones((1, generations)), drawn])


def estimate(values: Floats) -> Estimate | None:
    """Value and interval of a statistic.

    Args:
        values: The statistic by row of the weights, ``(S + 1,)``; resamples where it is undefined are NaN and
            left out.

    Returns:
        ``None`` when the statistic itself is undefined.
    """
    if np.isnan(values[0]):
        return None
    low, high = np.nanpercentile(values, (2.5, 97.5))
    return Estimate(float(values[0]), float(low), float(high))


def pearson(features: npt.NDArray[np.floating], target: Ints, generations: Ints, weights: Floats) -> Floats:
    """Pearson's r of each feature with a target over all steps.

    Args:
        features: ``(M, F)``.
        target: ``(M,)``.
        generations: Number of the generation of each step, ``(M,)``.
        weights: How often each generation counts, ``(S + 1, G)``.

    Returns:
        ``(S + 1, F)``; NaN where a feature or the target does not vary.
    """
    x, y = features.astype(np.float64), target.astype(np.float64)[:, None]
    x_tiny, y_tiny = (_CONSTANT * np.square(v).mean(axis=0) for v in (x, y))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)

    def total(values: Floats) -> Floats:
        sums = np.zeros((weights.shape[1], values.shape[1]))
        np.add.at(sums, generations, values)
        return weights @ sums

    with np.errstate(divide="ignore", invalid="ignore"):
        steps = total(np.ones_like(y))
        x_mean, y_mean = total(x) / steps, total(y) / steps
        x_variance = total(x * x) / steps - x_mean**2
        y_variance = total(y * y) / steps - y_mean**2
        r: Floats = (total(x * y) / steps - x_mean * y_mean) / np.sqrt(x_variance * y_variance)
    r[(x_variance <= x_tiny) | (y_variance <= y_tiny)] = np.nan
    return r


def auroc(scores: Floats, positive: Flags, generations: Ints, folds: Ints, weights: Floats) -> Floats:
    """How often a positive step scores above a negative one of the same fold; a tie counts half.

    That is the Mann-Whitney U statistic over the number of pairs. Scores of different folds are of different
    models, and pairs across them would pull the pooled AUROC below 1/2 where nothing can be predicted (Parker
    et al. 2007, doi:10.1186/1471-2105-8-326).

    Args:
        scores: ``(M,)``.
        positive: ``(M,)``.
        generations: Number of the generation of each step, ``(M,)``.
        folds: Fold of each generation, ``(G,)``.
        weights: How often each generation counts, ``(S + 1, G)``.

    Returns:
        ``(S + 1,)``; NaN where there is no pair.
    """
    count = len(folds)
    won, pairs = np.zeros((count, count)), np.zeros((count, count))
    for rival in range(count):
        negatives = np.sort(scores[(generations == rival) & ~positive])
        own = positive & (folds[generations] == folds[rival])
        below, not_above = (np.searchsorted(negatives, scores[own], side) for side in ("left", "right"))
        np.add.at(won[:, rival], generations[own], (below + not_above) / 2)
        np.add.at(pairs[:, rival], generations[own], len(negatives))

    def total(table: Floats) -> Floats:
        # A generation that is drawn c times makes c generations, not pairs of its copies with each other:
        # those would be within one text, but counted as if between two.
        between: Floats = (weights @ table * weights).sum(axis=1)
        return between + (weights - weights**2) @ table.diagonal()

    with np.errstate(invalid="ignore"):
        share: Floats = total(won) / total(pairs)
    return share
