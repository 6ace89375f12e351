"""Statistics of policies side by side on the same prompts, each with its paired bootstrap interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.interquartile import interquartile_mean

FloatArray = npt.NDArray[np.float64]

ENOUGH = 10
"""Prompts below which a bootstrap's interval is so much too narrow that nothing is decided by it."""
REFERENCE = "autoregressive"
"""The policy whose throughput is ρ = 1 and whose texts the others must reproduce."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two throughputs, or another number that the prompts give.

    Attributes:
        value: Over all prompts.
        low: Lower end of the 95 % interval; ``None`` with fewer than two prompts.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


def paired_bootstrap(
    statistic: Callable[[FloatArray], FloatArray], prompts: int, samples: int = 10_000, seed: int = 0
) -> Ratio:
    """A statistic of all prompts with its interval.

    Prompts are resampled with replacement, all policies on the same ones, so what makes a prompt slow for
    all cancels. The interval is the 2.5 to 97.5 percentile range (Efron and Tibshirani 1993, chapter 13).

    Args:
        statistic: Its values, ``(samples,)``, by how often each prompt was drawn, ``(samples, prompts)``.
        prompts: How many there are.
        samples: Resamples.
        seed: Seed of the resampling; with one seed, all statistics see the same resamples.
    """
    value = float(statistic(np.ones((1, prompts)))[0])
    if prompts < 2:
        return Ratio(value)
    counts = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=samples)
    low, high = np.percentile(statistic(counts.astype(np.float64)), (2.5, 97.5))
    return Ratio(value, float(low), float(high))


def throughput_ratio(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    reference_tokens: npt.ArrayLike,
    reference_seconds: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Ratio of two throughputs, each Σ tokens / Σ seconds, with its paired bootstrap interval.

    Args:
        tokens: Tokens per prompt, ``(prompts,)``.
        seconds: Seconds per prompt, ``(prompts,)``.
        reference_tokens: The same of the denominator, prompts in the same order.
        reference_seconds: The same of the denominator.
        samples: Resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: When the four are not of one length, or there is no prompt.
    """
    table = _table(tokens, seconds, reference_tokens, reference_seconds)
    return paired_bootstrap(lambda counts: _ratios(counts @ table), len(table), samples, seed)


def interquartile_ratio(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    reference_tokens: npt.ArrayLike,
    reference_seconds: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Interquartile mean, over prompts, of a prompt's ratio of two throughputs (arXiv 2108.13264, section 4).

    Every prompt weighs the same however long its text, and neither a quarter of the prompts that went
    exceptionally well nor one that went badly moves it. Arguments and errors as of :func:`throughput_ratio`.
    """
    ratios = _ratios(_table(tokens, seconds, reference_tokens, reference_seconds))
    return paired_bootstrap(lambda counts: interquartile_mean(ratios, counts), len(ratios), samples, seed)


def improvement(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    reference_tokens: npt.ArrayLike,
    reference_seconds: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Probability that the first throughput is the higher one on a prompt (arXiv 2108.13264, section 4).

    The share of the prompts on which it is; a tie counts half. Prompts are paired, where the source compares
    all runs with all. Arguments and errors as of :func:`throughput_ratio`.
    """
    ratios = _ratios(_table(tokens, seconds, reference_tokens, reference_seconds))
    wins = np.heaviside(ratios - 1, 0.5)
    return paired_bootstrap(lambda counts: counts @ wins / wins.size, wins.size, samples, seed)


def rate_gap(
    amounts: npt.ArrayLike,
    units: npt.ArrayLike,
    reference_amounts: npt.ArrayLike,
    reference_units: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Difference of two rates, each Σ amounts / Σ units, with its paired bootstrap interval.

    Args:
        amounts: What is spread over the units, per prompt, ``(prompts,)``.
        units: Whole numbers, per prompt; a rate of no units is 0.
        reference_amounts: The same of what is subtracted, prompts in the same order.
        reference_units: The same of what is subtracted.
        samples: Resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: When the four are not of one length, or there is no prompt.
    """
    table = _table(amounts, units, reference_amounts, reference_units)

    def gap(counts: FloatArray) -> FloatArray:
        own, own_units, other, other_units = (counts @ table).T
        found: FloatArray = own / np.maximum(own_units, 1) - other / np.maximum(other_units, 1)
        return found

    return paired_bootstrap(gap, len(table), samples, seed)


def _table(*columns: npt.ArrayLike) -> FloatArray:
    """Columns of an entry a prompt side by side, ``(prompts, columns)``."""
    arrays = [np.asarray(column, dtype=np.float64) for column in columns]
    n = arrays[0].size
    if n == 0 or any(array.shape != (n,) for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise ValueError(
            f"a paired statistic needs four arrays of one length >= 1, one entry a prompt; got {shapes}"
        )
    return np.stack(arrays, axis=1)


def _ratios(sums: FloatArray) -> FloatArray:
    """(tokens / seconds) / (reference tokens / reference seconds) along the last axis."""
    tokens, seconds, reference_tokens, reference_seconds = np.moveaxis(sums, -1, 0)
    ratios: FloatArray = (tokens * reference_seconds) / (seconds * reference_tokens)
    return ratios
