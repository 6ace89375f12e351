"""Scores of several seeds on several texts as one number, with the interval that few seeds leave it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from entmtp_env.interquartile import interquartile_mean


class Interval(NamedTuple):
    """A number and its 95 % interval.

    Attributes:
        value: The number.
        low: Lower end; ``None`` with one seed.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


def over_seeds(scores: npt.ArrayLike, samples: int = 2_000, seed: int = 0) -> Interval:
    """Interquartile mean over seeds and texts, with its stratified bootstrap interval.

    The texts are the strata: of each text, as many seeds as there are are drawn with replacement, whichever
    were drawn of the others; the interval is the 2.5 to 97.5 percentile range of the interquartile means
    (Agarwal et al. 2021, arXiv 2108.13264, section 4). It tells what other seeds would give on these texts.

    Args:
        scores: Scores, ``(seeds, texts)``.
        samples: Draws.
        seed: Seed of the draws.

    Raises:
        ValueError: When the scores are no such matrix.
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"scores must be (seeds, texts), at least one of each; got {table.shape}")
    value = float(interquartile_mean(table))
    if len(table) < 2:
        return Interval(value)
    rng = np.random.default_rng(seed)
    means = [
        interquartile_mean(np.take_along_axis(table, rng.integers(len(table), size=table.shape), axis=0))
        for _ in range(samples)
    ]
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(value, float(low), float(high))
