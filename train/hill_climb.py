"""Settings of the schedulers improved step by step, where trying them costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from policies.base import SchedulerPolicy
from train.candidates import Options, StaticRuns
from train.trial import Trial

_ALPHAS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
_MARGINS = (0.0, 0.05, 0.1, 0.2, 0.3)
_WARMUPS = (1, 2, 4, 8, 16)
_DWELLS = (1, 2, 4, 8)
_PARTS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Edges of an ema-ladder are tried at these parts of the depth of the rung below."""


def climb(
    start: Trial,
    neighbours: Callable[[SchedulerPolicy], Sequence[SchedulerPolicy]],
    run: Callable[[Sequence[SchedulerPolicy]], list[Trial]],
    known: dict[str, Trial],
) -> Trial:
    """Go to the fastest neighbour until none is faster.

    Args:
        start: Where to begin.
        neighbours: The policies next to one.
        run: Tries policies.
        known: What was tried, by spec; what is tried now is added.

    Returns:
        The best trial; no neighbour of it is faster.
    """
    best = start
    while True:
        around = {policy.spec: policy for policy in neighbours(best.policy)}
        new = run([policy for spec, policy in around.items() if spec not in known])
        known.update((trial.policy.spec, trial) for trial in new)
        rival = max((known[spec] for spec in around), key=lambda trial: trial.rate, default=best)
        if rival.rate <= best.rate:
            return best
        best = rival


@dataclass(frozen=True)
class Moves:
    """The settings next to some: one of their numbers or trees is another.

    Attributes:
        runs: What each tree did alone.
        shares: Thresholds and edges are moved to these quantiles of the score.
        taus: Thresholds are moved to these instead, unless it is empty.
    """

    runs: StaticRuns
    shares: Sequence[float]
    taus: Sequence[float] = ()

    def threshold(self, options: Options) -> Iterator[Options]:
        """Another τ_on with the same hysteresis, none, or another; another T− or T+."""
        small, large, on, off = (options[key] for key in ("small", "large", "on", "off"))
        grid = self.taus or self.runs.quantiles(options["score"], (small, large), self.shares)
        for tau in grid:
            yield options | {"on": tau, "off": tau}
            yield options | {"on": tau, "off": min(tau, off)}
            if tau <= on:
                yield options | {"off": tau}
        for low, high in self.runs.all_pairs():
            if low == small or high == large:
                yield options | {"small": low, "large": high}

    def ladder(self, options: Options) -> Iterator[Options]:
        """Another edge, another tree between those around it, or a rung less."""
        grid = self.runs.quantiles(options["score"], options["trees"], self.shares)
        for i in range(len(options["edges"])):
            yield from _with_edge(options, i, grid)
        yield from self._with_tree(options)
        yield from _with_fewer(options)

    def ema_ladder(self, options: Options) -> Iterator[Options]:
        """Another edge, smoothing, margin, warm-up or dwell, and as a ladder; only what can be crossed."""
        changed = [
            options | {key: value}
            for key, values in (
                ("alpha", _ALPHAS),
                ("margin", _MARGINS),
                ("warmup", _WARMUPS),
                ("dwell", _DWELLS),
            )
            for value in values
        ]
        for i, depth in enumerate(self._depths(options)):
            changed += _with_edge(options, i, [round(part * depth, 6) for part in _PARTS])
        changed += [*self._with_tree(options), *_with_fewer(options)]
        for own in changed:
            bounds = zip(own["edges"], self._depths(own), strict=True)
            if all(edge >= own["margin"] and edge + own["margin"] < depth for edge, depth in bounds):
                yield own

    def _with_tree(self, options: Options) -> Iterator[Options]:
        """Another tree on each rung, larger than those below and smaller than those above."""
        size = {tree.name: (len(tree), tree.depth) for tree in self.runs.bank}
        trees = options["trees"]
        for i in range(len(trees)):
            for tree in self.runs.contenders():
                larger = all(size[below] < size[tree] for below in trees[:i])
                if larger and all(size[tree] < size[above] for above in trees[i + 1 :]):
                    yield options | {"trees": (*trees[:i], tree, *trees[i + 1 :])}

    def _depths(self, options: Options) -> list[int]:
        """Depth of the rung below each edge."""
        bank = self.runs.bank
        return [bank[bank.index(tree)].depth for tree in options["trees"][:-1]]


def _with_edge(options: Options, i: int, grid: Sequence[float]) -> Iterator[Options]:
    edges = options["edges"]
    lower, upper = (-float("inf"), *edges)[i], (*edges, float("inf"))[i + 1]
    for edge in grid:
        if lower < edge < upper:
            yield options | {"edges": (*edges[:i], edge, *edges[i + 1 :])}


def _with_fewer(options: Options) -> Iterator[Options]:
    """Leave out each rung but never all but one; its interval goes to the rung below or to that above."""
    trees, edges = options["trees"], options["edges"]
    if len(trees) < 3:
        return
    for i in range(len(trees)):
        for j in {max(i - 1, 0), min(i, len(edges) - 1)}:
            yield options | {"trees": trees[:i] + trees[i + 1 :], "edges": edges[:j] + edges[j + 1 :]}
