"""A decode step of static shapes: draft, verify and commit over fixed buffers, without a word to the host."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.acceptance import AcceptanceRule
from entmtp_env.decoding.backbone import Backbone, BackboneConfig
from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.heads import DraftHeads, HeadsConfig
from entmtp_env.decoding.static_accept import judge
from entmtp_env.decoding.static_attention import StaticAttention
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_tables import TreeTables
from entmtp_env.trees import DraftTree


class StaticStep:
    """The step of one tree. Its pieces allocate nothing that outlives them, and can be captured as graphs.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        buffers: What the pieces read and write.
        tree: The tree.
    """

    def __init__(
        self, backbone: Backbone, heads: DraftHeads, buffers: StaticBuffers, tree: DraftTree
    ) -> None:
        self._backbone, self._heads, self._buffers = backbone, heads, buffers
        self._tree, self._tables = tree, TreeTables(tree, heads.sequential, backbone.device)
        rows, path_rows = len(tree) + 1, tree.depth + 1
        self._tokens = buffers.tokens[:rows]
        self._hidden, self._logits = buffers.hidden[:rows], buffers.logits[:rows]
        self._chosen = buffers.chosen[:rows]
        self._steps = torch.arange(path_rows, device=backbone.device)
        self._causal = self._steps <= self._steps[:, None]

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

    def verify(self, bucket: int) -> None:
        """One pass of the base over root and drafts: fills ``hidden`` and ``logits``.

        Args:
            bucket: KV rows that are read, at least ``length + nodes + 1``.
        """
        backbone, t = self._backbone, self._tables
        attention = self._attention(t.depths, t.sees, bucket, backbone.config)
        embedded, kv = backbone.embedding[self._tokens], self._buffers.kv
        self._hidden.copy_(backbone.run(embedded, lambda layer, qkv: attention(kv[layer], qkv)))
        self._logits.copy_(backbone.logits(self._hidden))

    def accept(self, rule: AcceptanceRule) -> None:
        """Accept a path: fills ``last`` and ``chosen``, and in ``result`` whether the first draft stands."""
        b = self._buffers
        verdict = judge(rule, self._tables, self._tokens, self._logits, b.noise.values, b.length)
        b.last.copy_(verdict.last)
        self._chosen.copy_(verdict.chosen)
        if len(self._tree):
            b.result[1:2].copy_(verdict.stands[1:2])

    def commit(self, bucket: int) -> None:
        """Keep the accepted path: KV rows in place, prefix layer, next root and state, and ``result``.

        Everything has the length of the longest path; rows behind the accepted ones are never seen.

        Args:
            bucket: KV rows that the prefix layer reads, at least ``length + depth + 1``.
        """
        b, t = self._buffers, self._tables
        path, last = t.paths[b.last][0], t.depths[b.last]
        if len(self._tree) > self._tree.depth:  # the rows of a chain are where they belong
            b.kv.index_copy_(3, b.length + self._steps, b.kv.index_select(3, b.length + path))
        states = self._hidden[path]
        if self._heads.prefix is not None:
            states = self._prefix(states, bucket)
        following = self._chosen[path]
        b.accepted.copy_(last + 1)
        b.next_state.copy_(states[last][0])
        b.next_root.copy_(following[last])
        b.path_logits[: len(path)].copy_(self._logits[path])
        b.result[:1].copy_(last + 1)
        b.result[2:][: len(path)].copy_(self._tokens[path])
        b.result[2 + b.path_rows :][: len(path)].copy_(following)

    def _prefix(self, hidden: Tensor, bucket: int) -> Tensor:
        """The prefix layer over successive rows, ``(rows, hidden_size)``."""
        layer, kv = self._heads.prefix, self._buffers.prefix_kv
        assert layer is not None
        assert kv is not None
        attention = self._attention(self._steps, self._causal, bucket, layer.config)
        qkv = layer.qkv(layer.input_norm(hidden)).view(len(hidden), -1, layer.config.head_dim)
        x = hidden + layer.out(attention(kv[0], qkv))
        gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, dim=-1)
        return layer.final_norm(x + layer.down(F.silu(gate) * up))

    def _attention(
        self, depths: Tensor, sees: Tensor, bucket: int, config: BackboneConfig | HeadsConfig
    ) -> StaticAttention:
        backbone, length = self._backbone, self._buffers.length
        heads = config.num_heads, config.num_kv_heads
        return StaticAttention(backbone.rotary, length, depths, sees, bucket, *heads, backbone.dtype)
