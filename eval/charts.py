"""Geometry of the report's charts, in units of their SVG view boxes; the templates draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from eval.statistics import Ratio

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Scale:
    """A linear axis.

    Attributes:
        low: Value at ``start``.
        high: Value at ``end``.
        start: Coordinate of ``low``.
        end: Coordinate of ``high``.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Coordinate of a value."""
        span = (self.high - self.low) or 1.0
        return round(self.start + (value - self.low) / span * (self.end - self.start), 2)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """Coordinates and labels of round values."""
        values = MaxNLocator(count).tick_values(self.low, self.high)
        return [(self(v), f"{v:.6g}") for v in values if self.low <= v <= self.high]


@dataclass(frozen=True)
class Point:
    """A policy in a scatter plot.

    Attributes:
        label: Its number in the table.
        title: What the cursor shows.
        x: Coordinates of value and interval: value, low, high.
        y: The same.
        place: Coordinates of the label's middle.
    """

    label: str
    title: str
    x: tuple[float, float, float]
    y: tuple[float, float, float]
    place: tuple[float, float]


@dataclass(frozen=True)
class Scatter:
    """Points with intervals, and their Pareto front.

    Attributes:
        width: Of the view box.
        height: Of the view box.
        x_axis: Horizontal axis.
        y_axis: Vertical axis.
        points: The points.
        front: Coordinates of the points that none is above and right of, from left to right.
    """

    width: int
    height: int
    x_axis: Scale
    y_axis: Scale
    points: Sequence[Point]
    front: Sequence[tuple[float, float]]


def scatter(rows: Sequence[tuple[str, str, Ratio, Ratio]], width: int = 460, height: int = 300) -> Scatter:
    """Lay a scatter plot out; more is better along both axes.

    Args:
        rows: Label, title, horizontal and vertical value of each point, at least one.
        width: Of the view box.
        height: Of the view box.
    """
    x_axis = _padded([row[2] for row in rows], 48, width - 16)
    y_axis = _padded([row[3] for row in rows], height - 40, 12)
    middles = [(x_axis(row[2].value), y_axis(row[3].value)) for row in rows]
    taken: list[Box] = [(x - 6, y - 6, x + 6, y + 6) for x, y in middles]
    points = []
    for (label, title, x, y), (left, top) in zip(rows, middles, strict=True):
        place = _free_place(left, top, taken)
        taken.append(_box(*place))
        points.append(Point(label, title, _ends(x, x_axis), _ends(y, y_axis), place))
    values = [(row[2].value, row[3].value) for row in rows]
    front = [
        middle
        for middle, (x, y) in zip(middles, values, strict=True)
        if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in values)
    ]
    return Scatter(width, height, x_axis, y_axis, points, sorted(front))


@dataclass(frozen=True)
class Bar:
    """A rectangle: its group's index, what the cursor shows, and coordinates."""

    group: int
    title: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Histogram:
    """A histogram whose bars are stacked by group.

    Attributes:
        title: What is counted.
        width: Of the view box.
        height: Of the view box.
        x_axis: Horizontal axis.
        bars: The bars.
    """

    title: str
    width: int
    height: int
    x_axis: Scale
    bars: Sequence[Bar]


def histogram(
    title: str,
    values: npt.NDArray[np.float64],
    groups: npt.NDArray[np.int64],
    names: Sequence[str],
    bins: int = 24,
    width: int = 230,
    height: int = 130,
) -> Histogram:
    """Count values, stacked by group.

    Args:
        title: What is counted.
        values: The values, ``(n,)``, n >= 1.
        groups: Index into ``names`` of each, ``(n,)``.
        names: Names of the groups.
        bins: Bars across the range from 0 to the larger of 1 and the largest value.
        width: Of the view box.
        height: Of the view box.
    """
    x_axis = Scale(min(0.0, float(values.min())), max(1.0, float(values.max())), 8, width - 8)
    edges = np.linspace(x_axis.low, x_axis.high, bins + 1)
    counts = np.stack([np.histogram(values[groups == g], edges)[0] for g in range(len(names))])
    y_axis = Scale(0, float(counts.sum(axis=0).max()), height - 20, 6)
    bars = []
    for k in range(bins):
        below = 0
        for group, count in enumerate(counts[:, k].tolist()):
            if count:
                top = y_axis(below + count)
                label = f"{edges[k]:.2f} to {edges[k + 1]:.2f}, {names[group]}: {count}"
                left = x_axis(edges[k])
                across = round(x_axis(edges[k + 1]) - left, 2)
                bars.append(Bar(group, label, left, top, across, round(y_axis(below) - top, 2)))
                below += count
    return Histogram(title, width, height, x_axis, bars)


def _padded(values: Sequence[Ratio], start: float, end: float) -> Scale:
    ends = [end for v in values for end in (v.value, v.low, v.high) if end is not None]
    low, high = min(ends), max(ends)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(low - margin, high + margin, start, end)


def _ends(value: Ratio, axis: Scale) -> tuple[float, float, float]:
    at = axis(value.value)
    return at, at if value.low is None else axis(value.low), at if value.high is None else axis(value.high)


def _box(x: float, y: float) -> Box:
    return x - 8, y - 7, x + 8, y + 7


def _free_place(x: float, y: float, taken: Sequence[Box]) -> tuple[float, float]:
    """The place around a point that covers least of what is there already."""
    places = [
        (x + reach * dx, y + reach * dy)
        for reach in (13, 22)
        for dx, dy in ((1, -1), (-1, -1), (1, 1), (-1, 1), (0, -1.2), (0, 1.2), (1.3, 0), (-1.3, 0))
    ]
    return min(places, key=lambda place: sum(_overlap(_box(*place), other) for other in taken))


def _overlap(one: Box, other: Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    down = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, across) * max(0.0, down)
