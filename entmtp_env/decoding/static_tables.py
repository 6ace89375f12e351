"""Index tables of a draft tree on the device, for steps of static shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entmtp_env.trees import DraftTree

_Table = Callable[[npt.ArrayLike], Tensor]


@dataclass(frozen=True)
class Level:
    """Where the nodes of one depth get their tokens from.

    Attributes:
        rows: Their rows in the tree.
        width: Most children of a node above.
        parent: Per node, its parent's place among the expanded nodes above (always 0 for Medusa heads, which
            say the same of every node).
        rank: Per node, its rank among its siblings.
        expanded: Nodes that have children, as places among the nodes of this depth.
        origin: ``parent`` of these.
    """

    rows: slice
    width: int
    parent: Tensor
    rank: Tensor
    expanded: Tensor
    origin: Tensor


class RowTables(Protocol):
    """What tree some rows are; row 0 is the root.

    A row that only pads has depth -1, which no path reaches.

    Attributes:
        depths: Depth of each row, ``(rows,)``.
        parents: Parent of each row, ``(rows,)``; the root is its own.
        sees: Whether row i is row j or below it, ``(rows, rows)``.
        paths: Row at depth 0, 1, ... on the way to each row, then the row itself again and again,
            ``(rows, depth + 1)``.
        inner: Rows that may have children, ``(inner,)``.
        place: Place of each node's parent among these, ``(rows - 1,)``.
        in_place: Whether every path's rows are where they belong in a cache, as those of a chain are.
    """

    depths: Tensor
    parents: Tensor
    sees: Tensor
    paths: Tensor
    inner: Tensor
    place: Tensor
    in_place: bool


class TreeTables(RowTables):
    """Tables of one tree; row i + 1 is node i.

    Args:
        tree: The tree.
        sequential: Whether heads see the path to a node (Hydra) or not (Medusa).
        device: Where the tables live.

    Attributes:
        tree: The tree.
        levels: Depths 1, 2, ...
    """

    def __init__(self, tree: DraftTree, sequential: bool, device: torch.device) -> None:
        def table(values: npt.ArrayLike) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=np.int64)).to(device)

        self.tree, self.in_place = tree, len(tree) == tree.depth
        self.depths, self.parents = table(tree.depths), table(tree.parents)
        self.sees = torch.from_numpy(tree.attends).to(device)
        self.paths = table(
            [[tree.rows[node[:depth]] for depth in range(tree.depth + 1)] for node in tree.rows]
        )
        inner, place = np.unique(tree.parents[1:], return_inverse=True)
        self.inner, self.place = table(inner), table(place)
        self.levels = [self._level(depth, sequential, table) for depth in range(1, tree.depth + 1)]

    def _level(self, depth: int, sequential: bool, table: _Table) -> Level:
        start, end = self.tree.level_starts[depth : depth + 2]
        nodes = self.tree.nodes[start - 1 : end - 1]
        above = list(dict.fromkeys(node[:-1] for node in nodes))
        parent = [above.index(node[:-1]) if sequential else 0 for node in nodes]
        expanded = [i for i, node in enumerate(nodes) if (*node, 0) in self.tree.rows]
        return Level(
            rows=slice(start, end),
            width=1 + max(node[-1] for node in nodes),
            parent=table(parent),
            rank=table([node[-1] for node in nodes]),
            expanded=table(expanded),
            origin=table([parent[i] for i in expanded]),
        )
