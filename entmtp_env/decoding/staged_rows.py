"""A static step over a tree that is built on the device, from the best of the drafted nodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.node_table import BuiltTree
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_nodes import StaticNodes
from entmtp_env.decoding.static_rows import StaticRows


@dataclass(eq=False)
class BuiltTables:
    """Tables that are data: every step fills them; see :class:`~entmtp_env.decoding.static_tables.RowTables`.

    Attributes:
        nodes: Number of each row's node, rising, ``(rows,)``; behind the tree the number that is no node.
        depths: Depth of each row, ``(rows,)``; -1 behind the tree.
        parents: Parent of each row.
        sees: Tree mask; rows behind the tree see the first of them only.
        paths: Rows on the way to each row.
        inner: All rows.
        place: Parents of all but the root.
        in_place: Whether there is only the root.
    """

    nodes: Tensor
    depths: Tensor
    parents: Tensor
    sees: Tensor
    paths: Tensor
    inner: Tensor
    place: Tensor
    in_place: bool

    @classmethod
    def empty(cls, rows: int, depth: int, device: torch.device) -> BuiltTables:
        """Tables of so many rows and paths of at most that depth, before any tree is built."""
        whole = torch.zeros(rows, dtype=torch.int64, device=device)
        parents = whole.clone()
        return cls(
            nodes=whole.clone(),
            depths=whole.clone(),
            parents=parents,
            sees=torch.zeros(rows, rows, dtype=torch.bool, device=device),
            paths=whole[:, None].repeat(1, depth + 1),
            inner=torch.arange(rows, device=device),
            place=parents[1:],
            in_place=rows == 1,
        )


class StagedRows(StaticRows):
    """The step of any tree of drafted nodes that fits into so many rows; what is left of them is padding.

    Padding rows have depth -1: no path reaches them, no row of the tree sees them.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        buffers: What the pieces read and write.
        nodes: The drafted nodes, and how many of them to verify.
        rows: Rows, the root's among them; at most 1 + the largest budget.
    """

    def __init__(
        self, backbone: Backbone, heads: DraftHeads, buffers: StaticBuffers, nodes: StaticNodes, rows: int
    ) -> None:
        self._nodes = nodes
        # Each node of a path takes a row.
        depth = min(nodes.stages.depth, rows - 1)
        self.tables = BuiltTables.empty(rows, depth, backbone.device)
        super().__init__(backbone, heads, buffers, self.tables)

    def draft(self) -> None:
        """Build the tree of the ``nodes.count`` best nodes: fills the tables and ``tokens``."""
        n, t = self._nodes, self.tables
        best = n.order()[: self.rows - 1].masked_fill(t.inner[:-1] >= n.count, n.none)
        # Row 0 is the root, number 0, from the beginning.
        t.nodes[1:].copy_(best.sort().values)
        t.depths.copy_(n.depths[t.nodes])
        # Numbers rise, and whatever is on the way to a row has a row.
        t.paths.copy_(torch.searchsorted(t.nodes, n.paths[t.nodes, : self.depth + 1]))
        t.parents.copy_(t.paths.gather(1, (t.depths - 1).clamp_min(0)[:, None])[:, 0])
        t.sees.copy_((t.paths[:, :, None] == t.inner).any(1))
        self._tokens.copy_(n.tokens[t.nodes])
        self._tokens[:1].copy_(self._buffers.root)

    def built(self) -> BuiltTree:
        """The tree as the host knows trees; this waits for the device."""
        t = self.tables
        rows = int((t.depths >= 0).sum())
        tables = (t.nodes[:rows], t.parents[:rows], t.depths[:rows], t.sees[:rows, :rows])
        return BuiltTree(*(table.cpu().numpy().copy() for table in tables))
