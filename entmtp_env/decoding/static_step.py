"""A decode step of static shapes by one tree: over fixed buffers, without a word to the host."""

from __future__ import annotations

import torch

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_rows import StaticRows
from entmtp_env.decoding.static_tables import TreeTables
from entmtp_env.trees import DraftTree


class StaticStep(StaticRows):
    """The step of one tree.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        buffers: What the pieces read and write.
        tree: The tree.
    """

    def __init__(
        self, backbone: Backbone, heads: DraftHeads, buffers: StaticBuffers, tree: DraftTree
    ) -> None:
        self._tree, self._tables = tree, TreeTables(tree, heads.sequential, backbone.device)
        super().__init__(backbone, heads, buffers, self._tables)

    def draft(self) -> None:
        """Draft the tree below ``buffers.root``: fills ``tokens``, and ``signals`` where there are drafts."""
        b, heads = self._buffers, self._heads
        self._tokens[:1].copy_(b.root)
        # Per expanded node of the depth above: what its head reads, one row each.
        inputs = b.state[None]
        if heads.sequential:
            inputs = torch.cat((inputs, heads.embed(b.root)), dim=-1)
        for depth, level in enumerate(self._tables.levels, start=1):
            logits = heads.logits(depth, inputs).float()
            index = logits.topk(level.width, dim=-1).indices
            tokens = heads.vocab_ids[index[level.parent, level.rank]]
            self._tokens[level.rows].copy_(tokens)
            if depth <= self._tree.greedy_depth:
                # The greedy chain's node is the first of its depth.
                for row, signal in zip(b.signals, certainty(logits[0]), strict=True):
                    row[depth - 1].copy_(signal)
            if heads.sequential and depth < self._tree.depth:
                inputs = torch.cat((inputs[level.origin], heads.embed(tokens[level.expanded])), dim=-1)
