"""The interquartile mean: a mean that a few outliers do not move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def interquartile_mean(scores: npt.ArrayLike, counts: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
    """Mean of the middle half of all scores: a quarter, rounded down, is left out at either end.

    Args:
        scores: Scores, of any shape.
        counts: How often each score was drawn, ``(..., scores)``, for the resamples of a bootstrap; once each
            when left out.

    Returns:
        The means, ``(...)``.

    Raises:
        ValueError: When there is no score.
    """
    own = np.asarray(scores, dtype=np.float64).ravel()
    if not own.size:
        raise ValueError("an interquartile mean needs at least one score")
    order = np.argsort(own)
    drawn = np.ones(own.size) if counts is None else np.asarray(counts, dtype=np.float64)[..., order]
    ranks = drawn.cumsum(axis=-1)
    total = ranks[..., -1:]
    quarter = total // 4
    # Of how many draws a score is, between the ranks of the two quarters.
    kept = np.diff(np.clip(ranks, quarter, total - quarter), axis=-1, prepend=quarter)
    means: npt.NDArray[np.float64] = kept @ own[order] / kept.sum(axis=-1)
    return means
