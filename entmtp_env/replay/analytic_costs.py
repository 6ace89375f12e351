"""Seconds of a decode step from a few numbers, for machines that one does not own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.cost_table import CostTable, Seconds, StepCosts
from entmtp_env.trees import DraftTree, TopologyBank

_TIE = 1e-12
"""Sum of squared relative errors by which more terms must fit better: rounding must not choose."""


@dataclass(frozen=True)
class AnalyticCosts:
    """A step takes ``base + node * max(n - free, 0) + depth * d + (context + attention * n) * L`` seconds.

    n is the tree's number of nodes, d its depth, L the context length. ``free`` is there because decoding is
    bound by memory: the first few rows ride along with the root's at no cost. Drafting is ``depth * d``,
    verification the rest. The prefill of L tokens counts as L - 1 nodes that see L / 2 others each.

    Args:
        base: Seconds of a step without drafts and context.
        node: Seconds of each node behind the free ones.
        depth: Seconds of each drafted depth.
        context: Seconds of each committed token.
        attention: Seconds for each node to see each committed token.
        free: Nodes that cost nothing.
        probed: Probe whose time is in the numbers, as they were fitted to a table that was measured with it.

    Raises:
        ValueError: When ``base`` is not positive, another is negative or no number, or ``probed`` is no name.
    """

    base: float
    node: float = 0.0
    depth: float = 0.0
    context: float = 0.0
    attention: float = 0.0
    free: float = 0.0
    probed: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check that every step takes time."""
        if not isinstance(self.probed, str | None):
            raise ValueError(f"analytic costs: probed must be the name of a probe, got {self.probed!r}")
        for key, value in self._numbers.items():
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (key == "base" and value == 0):
                wanted = "a positive number" if key == "base" else "a number >= 0"
                raise ValueError(f"analytic costs: {key} must be {wanted}, got {value!r}")

    @property
    def name(self) -> str:
        """The spec that :func:`~entmtp_env.replay.costs.load_costs` makes the same from."""
        return "analytic:" + ",".join(f"{key}={value}" for key, value in self._stated.items())

    @property
    def manifest(self) -> dict[str, Any]:
        """The numbers."""
        return {"analytic": self._stated}

    @property
    def probe(self) -> None:
        """Any: decision points are compared at the same costs; `probed` says what is in the numbers."""
        return None

    @property
    def _stated(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @property
    def _numbers(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "probed"}

    def at(self, bank: TopologyBank, lengths: npt.NDArray[np.integer]) -> StepCosts:
        """Price the trees of a bank, as :meth:`CostTable.at` does; every tree has a price."""
        seconds = self._seconds(bank.trees, lengths)
        draft = np.broadcast_to(self.depth * _depths(bank.trees)[:, None], seconds.shape).copy()
        prefill = self.base + self.node * np.maximum(lengths - 1 - self.free, 0)
        prefill = prefill + self.attention * lengths**2 / 2
        return StepCosts(seconds, draft, seconds - draft, prefill)

    def relative_errors(self, table: CostTable) -> Seconds:
        """These costs over the measured ones, less 1, ``(K, C)`` as in ``table``."""
        return self._seconds(table.trees, table.contexts) / table.seconds - 1

    @classmethod
    def fit(cls, table: CostTable) -> AnalyticCosts:
        """The numbers >= 0 with the least sum of squared relative errors on a measured table.

        Of a table with one context length, everything counts as ``base``, ``node`` and ``depth``.
        """
        probed = None if table.probe == "none" else table.probe
        nodes, depths = _nodes(table.trees)[:, None], _depths(table.trees)[:, None]
        contexts = table.contexts[None].astype(float)
        optional = ("node", "depth", "context", "attention")[: 2 if len(table.contexts) == 1 else 4]
        best, least = None, math.inf
        # Every set of terms above 0 is tried: non-negative least squares by enumeration.
        for free in range(max(1, int(nodes.max()))):
            terms = {
                "base": np.ones_like(table.seconds),
                "node": np.maximum(nodes - free, 0),
                "depth": depths,
                "context": contexts,
                "attention": nodes * contexts,
            }
            for names in _subsets(optional):
                chosen = ("base", *names)
                matrix = np.stack([(terms[name] / table.seconds).ravel() for name in chosen], axis=1)
                numbers, _, rank, _ = np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)
                if rank < len(chosen) or numbers[0] <= 0 or (numbers < 0).any():
                    continue
                error = float(((matrix @ numbers - 1) ** 2).sum())
                if error < least - _TIE:
                    least = error
                    found = dict(zip(chosen, numbers.tolist(), strict=True))
                    best = cls(**found, free=float(free), probed=probed)
        assert best is not None, "the base alone always fits"
        return best

    def _seconds(self, trees: Sequence[DraftTree], lengths: npt.NDArray[np.integer]) -> Seconds:
        nodes, depths = _nodes(trees)[:, None], _depths(trees)[:, None]
        of_tree = self.base + self.node * np.maximum(nodes - self.free, 0) + self.depth * depths
        return of_tree + (self.context + self.attention * nodes) * lengths


def _nodes(trees: Sequence[DraftTree]) -> Seconds:
    return np.array([len(tree) for tree in trees], dtype=np.float64)


def _depths(trees: Sequence[DraftTree]) -> Seconds:
    return np.array([tree.depth for tree in trees], dtype=np.float64)


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    return [subset for size in range(len(names) + 1) for subset in itertools.combinations(names, size)]
