"""Seconds of a decode step for trees that were not measured, between those of the trees that were."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.cost_table import CostTable, Seconds, StepCosts
from entmtp_env.trees import DraftTree, TopologyBank

_UPPER_HALF = 0.5
"""Beyond what was measured, costs go on as over the upper half of it: two neighbours tell no slope."""


@dataclass(frozen=True, eq=False)
class InterpolatedCosts:
    """A step takes the time of drafting to its tree's depth, and of all else for its number of nodes.

    Both are means over the measured trees of that depth, or of that many nodes, and lie on lines between
    measured ones. No shape is assumed, unlike in :class:`~entmtp_env.replay.analytic_costs.AnalyticCosts`:
    kernels that take rows in blocks make some sizes cheap and the next one dear.

    Args:
        table: What was measured; several sizes and depths.
    """

    table: CostTable

    @property
    def name(self) -> str:
        """The table's, said to be interpolated."""
        return f"interpolated:{self.table.name}"

    @property
    def manifest(self) -> dict[str, Any]:
        """That of the table."""
        return self.table.manifest

    @property
    def probe(self) -> str | None:
        """What was drafted before each decision when the table was measured."""
        return self.table.probe

    def at(self, bank: TopologyBank, lengths: npt.NDArray[np.integer]) -> StepCosts:
        """Price the trees of a bank, as :meth:`CostTable.at` does; every tree has a price."""
        table = self.table
        nodes, depths = (np.array([size(tree) for tree in table.trees]) for size in (len, _depth))
        own_nodes, own_depths = (np.array([size(tree) for tree in bank]) for size in (len, _depth))
        draft = _between(depths, table.draft_seconds, own_depths)
        seconds = draft + _between(nodes, table.seconds - table.draft_seconds, own_nodes)
        priced = replace(
            table,
            trees=bank.trees,
            seconds=seconds,
            lower=seconds,
            upper=seconds,
            draft_seconds=draft,
            verify_seconds=_between(nodes, table.verify_seconds, own_nodes),
        )
        return priced.at(bank, lengths)


def _depth(tree: DraftTree) -> int:
    return tree.depth


def _between(measured: npt.NDArray[np.int64], seconds: Seconds, wanted: npt.NDArray[np.int64]) -> Seconds:
    """Seconds ``(K, C)`` at the K measured sizes to ``(M, C)`` at the wanted ones."""
    sizes = np.unique(measured)
    means = np.stack([seconds[measured == size].mean(axis=0) for size in sizes])
    inside = np.stack([np.interp(wanted, sizes, column) for column in means.T], axis=1)
    if len(sizes) == 1:
        return inside
    half = int(np.abs(sizes[:-1] - _UPPER_HALF * sizes[-1]).argmin())
    slope = (means[-1] - means[half]) / (sizes[-1] - sizes[half])
    return inside + np.maximum(slope, 0) * np.maximum(wanted - sizes[-1], 0)[:, None]
