"""What takes turns round by round, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Turn = Callable[[], Mapping[str, float]]
"""Measures one or more named values, such as seconds."""

Samples = dict[str, npt.NDArray[np.float64]]
"""Values by name, one per round, ``(rounds,)``; entries of one round belong together."""


@dataclass(frozen=True)
class Finding:
    """A figure with its spread.

    Attributes:
        part: The part of the benchmark that it belongs to.
        name: What it is.
        value: Median over the rounds, or as its part defines it.
        lower: Lower quartile.
        upper: Upper quartile.
        unit: Of all three; ``"×"`` for a ratio.
        goal: What it should be, such as ``"≤ 1.3"``; empty when there is none.
    """

    part: str
    name: str
    value: float
    lower: float
    upper: float
    unit: str = "×"
    goal: str = ""

    @classmethod
    def of(cls, part: str, name: str, values: npt.ArrayLike, unit: str = "×", goal: str = "") -> Finding:
        """Median and quartiles of ``values``, ``(rounds,)``."""
        lower, median, upper = np.quantile(np.asarray(values), (0.25, 0.5, 0.75)).tolist()
        return cls(part, name, median, lower, upper, unit, goal)


def take_turns(turns: Sequence[Turn], rounds: int, advance: Callable[[], None]) -> Samples:
    """Take all turns in a fresh random order, round by round.

    Args:
        turns: What to measure; no two may use the same name.
        rounds: Rounds that are kept; one that warms up comes before.
        advance: Called after every turn.

    Returns:
        What the turns measured.
    """
    rng = np.random.default_rng(0)
    kept: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        kept.append({})
        for k in rng.permutation(len(turns)):
            kept[-1].update(turns[k]())
            advance()
    return {name: np.array([own[name] for own in kept[1:]], dtype=float) for name in kept[0]}


def median_of(run: Callable[[], npt.ArrayLike], repeats: int) -> npt.NDArray[np.float64]:
    """Median, entry by entry, of what ``run`` returns; a first call does not count."""
    return np.median(np.array([run() for _ in range(repeats + 1)])[1:], axis=0)
