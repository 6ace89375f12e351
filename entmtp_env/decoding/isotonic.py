"""Rising curves from what heads claim to what turned out true: isotonic regression."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

_BINS = 200


@dataclass(frozen=True)
class Curve:
    """A piecewise linear, non-decreasing map, constant beyond its ends.

    Args:
        inputs: Where it is known, rising strictly.
        outputs: Its values there, in [0, 1], not falling.

    Raises:
        ValueError: When it is no such map.
    """

    inputs: tuple[float, ...]
    outputs: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check what a file may bring."""
        x, y = self._points
        if x.ndim != 1 or not len(x) or x.shape != y.shape:
            raise ValueError(f"a curve needs as many outputs as inputs, got {y.shape} and {x.shape}")
        rising = (np.diff(x) > 0).all() and (np.diff(y) >= 0).all()
        if not rising or not np.isfinite(x).all() or not 0 <= y[0] <= y[-1] <= 1:
            raise ValueError("a curve needs strictly rising inputs and non-decreasing outputs in [0, 1]")

    @cached_property
    def _points(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return np.array(self.inputs, dtype=np.float64), np.array(self.outputs, dtype=np.float64)

    def __call__(self, values: Floats) -> npt.NDArray[np.float64]:
        """The map's value at each of ``values``, in their shape."""
        return np.interp(values, *self._points)

    def at(self, value: float) -> float:
        """The map's value at a finite number, as :meth:`__call__` has it; for one, in less time."""
        x, y = self.inputs, self.outputs
        above = bisect_right(x, value)
        if above == 0:
            return y[0]
        if above == len(x):
            return y[-1]
        below = above - 1
        return (y[above] - y[below]) / (x[above] - x[below]) * (value - x[below]) + y[below]


def pool_adjacent_violators(values: Floats, weights: Floats) -> list[tuple[int, float]]:
    """The non-decreasing sequence with the least weighted sum of squared differences.

    Args:
        values: A sequence, ``(n,)``.
        weights: Weight of each, > 0, ``(n,)``.

    Returns:
        Its runs of equal values, as length and value.
    """
    runs: list[tuple[int, float, float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        count = 1
        while runs and runs[-1][1] >= value:
            before, low, mass = runs.pop()
            value = (low * mass + value * weight) / (mass + weight)
            count, weight = count + before, weight + mass
        runs.append((count, value, weight))
    return [(count, value) for count, value, _ in runs]


def fit_curve(claimed: Floats, true: npt.NDArray[np.bool_]) -> Curve:
    """The isotonic regression of what was true on what was claimed, from (0, 0) on.

    Samples are first pooled into at most 200 bins of like counts, which bounds the curve's size. Between the
    runs of the regression it is linear, so that a small change of a claim never makes a jump.

    Args:
        claimed: Probabilities, ``(n,)``, one at least.
        true: What became of them, ``(n,)``.
    """
    order = np.argsort(claimed, kind="stable")
    x, y = claimed[order].astype(np.float64), true[order].astype(np.float64)
    edges = np.linspace(0, len(x), min(_BINS, len(x)), endpoint=False).astype(np.int64)
    # What was claimed alike is in one bin.
    edges = np.unique(np.searchsorted(x, x[edges]))
    counts = np.diff(edges, append=len(x))
    runs = pool_adjacent_violators(np.add.reduceat(y, edges) / counts, counts)
    edges = edges[np.cumsum([0, *(bins for bins, _ in runs[:-1])])]
    inputs = np.add.reduceat(x, edges) / np.diff(edges, append=len(x))
    outputs = np.array([value for _, value in runs])
    if inputs[0] > 0:
        inputs, outputs = np.append(0.0, inputs), np.append(0.0, outputs)
    return Curve(tuple(inputs.tolist()), tuple(outputs.tolist()))
