"""Which settings of the baseline schedulers are worth measuring, from what every static tree did."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.trees import DraftTree, TopologyBank

Options = dict[str, Any]
"""Keyword arguments of a policy."""

PAPER_TAUS = (0.001, 0.005, 0.01, 0.02, 0.05)
"""The thresholds that EntMTP (arXiv 2606.27550) sweeps."""
EMA_ALPHAS = (0.1, 0.3)
EMA_MARGINS = (0.1, 0.3)

_FEW_TREES = 9


@dataclass(frozen=True)
class StaticRuns:
    """What each tree did, alone, on the calibration prompts.

    Attributes:
        bank: The trees.
        rates: Tokens per second of each tree, by name.
        scores: By tree, then by feature name: its values at every decision, ``(steps,)``.
    """

    bank: TopologyBank
    rates: Mapping[str, float]
    scores: Mapping[str, Mapping[str, npt.NDArray[np.floating[Any]]]]

    @property
    def best(self) -> DraftTree:
        """The fastest tree: EntMTP* of these prompts."""
        return max(self.bank, key=self._rate)

    def pairs(self) -> list[tuple[str, str]]:
        """T− and T+: the best tree with the best smaller one, and with the best larger one, if any."""
        best = self.best
        smaller = max((t for t in self.bank if len(t) < len(best)), key=self._rate, default=None)
        larger = max((t for t in self.bank if len(t) > len(best)), key=self._rate, default=None)
        pairs = [(smaller, best), (best, larger)]
        return [(low.name, high.name) for low, high in pairs if low is not None and high is not None]

    def contenders(self) -> tuple[str, ...]:
        """The trees of the hull, all of a bank of up to 9; smallest first, of one size the shallower."""
        few = len(self.bank) <= _FEW_TREES
        trees = [tree for tree in self.bank if few or tree.name in self.hull()]
        return tuple(tree.name for tree in sorted(trees, key=lambda tree: (len(tree), tree.depth)))

    def all_pairs(self) -> list[tuple[str, str]]:
        """T− and T+: any two of the contenders, the smaller first."""
        return list(itertools.combinations(self.contenders(), 2))

    def hull(self) -> tuple[str, ...]:
        """The trees on the upper hull of (nodes, tokens per second), smallest first (EntMTP, stage 2)."""
        hull: list[DraftTree] = []
        for tree in self._best_per(len):
            while len(hull) > 1 and self._slope(hull[-2], hull[-1]) <= self._slope(hull[-1], tree):
                hull.pop()
            hull.append(tree)
        return tuple(tree.name for tree in hull)

    def best_per_depth(self) -> tuple[str, ...]:
        """The fastest tree of each depth from 1 up."""
        return tuple(tree.name for tree in self._best_per(lambda tree: tree.depth) if len(tree))

    def quantiles(self, score: str, trees: Sequence[str], shares: Sequence[float]) -> list[float]:
        """Quantiles of a score over the steps of some trees, rounded and without repeats, ascending."""
        values = np.concatenate([self.scores[tree][score] for tree in trees])
        return sorted({float(f"{value:.6g}") for value in np.quantile(values, shares)})

    def _rate(self, tree: DraftTree) -> float:
        return self.rates[tree.name]

    def _slope(self, low: DraftTree, high: DraftTree) -> float:
        return (self._rate(high) - self._rate(low)) / (len(high) - len(low))

    def _best_per(self, key: Callable[[DraftTree], int]) -> list[DraftTree]:
        groups = itertools.groupby(sorted(self.bank, key=key), key=key)
        return [max(group, key=self._rate) for _, group in groups]


def threshold_options(
    runs: StaticRuns,
    pairs: Sequence[tuple[str, str]],
    scores: Sequence[str],
    shares: Sequence[float],
    taus: Sequence[float] = (),
) -> list[Options]:
    """Settings of `policies.threshold.Threshold`: each pair, each score, each τ without hysteresis.

    Args:
        runs: The static trees.
        pairs: T− and T+.
        scores: Features to read.
        shares: τ are these quantiles of the score over the steps of the pair.
        taus: τ themselves, such as the paper's, instead of quantiles.
    """
    return [
        {"small": small, "large": large, "score": score, "on": on}
        for small, large in pairs
        for score in scores
        for on in taus or runs.quantiles(score, (small, large), shares)
    ]


def ladder_options(runs: StaticRuns, scores: Sequence[str]) -> list[Options]:
    """Settings of `policies.ladder.Ladder`: two sets of trees, each score, each tree for as many steps.

    A score that takes too few values to tell the trees apart is left out.
    """
    candidates: list[Options] = []
    for trees in _ladders(runs):
        shares = [k / len(trees) for k in range(1, len(trees))]
        for score in scores:
            edges = runs.quantiles(score, trees, shares)
            if len(edges) == len(shares):
                candidates.append({"trees": trees, "edges": tuple(edges), "score": score})
    return candidates


def ema_ladder_options(runs: StaticRuns) -> list[Options]:
    """Settings of `policies.ema_ladder.EmaLadder`: the same trees as far as each is deeper than the last."""
    depths = {tree.name: tree.depth for tree in runs.bank}
    ladders = []
    for trees in _ladders(runs):
        rungs: list[str] = []
        for tree in trees:
            if depths[tree] > (depths[rungs[-1]] if rungs else 0):
                rungs.append(tree)
        ladders.append(tuple(rungs))
    return [
        {"trees": trees, "alpha": alpha, "margin": margin}
        for trees in dict.fromkeys(ladders)
        if len(trees) > 1
        for alpha in EMA_ALPHAS
        for margin in EMA_MARGINS
    ]


def _ladders(runs: StaticRuns) -> list[tuple[str, ...]]:
    return [trees for trees in dict.fromkeys([runs.hull(), runs.best_per_depth()]) if len(trees) > 1]
