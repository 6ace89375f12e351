"""The part of a static step that looks only at rows: verify, accept and commit, whatever filled them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.acceptance import AcceptanceRule
from entmtp_env.decoding.backbone import Backbone, BackboneConfig
from entmtp_env.decoding.heads import DraftHeads, HeadsConfig
from entmtp_env.decoding.static_accept import judge
from entmtp_env.decoding.static_attention import StaticAttention
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_tables import RowTables


class StaticRows:
    """Pieces of a step over so many rows; they allocate nothing that outlives them, and can be captured.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        buffers: What the pieces read and write.
        tables: What tree the rows are.

    Attributes:
        rows: How many rows are verified, root and padding included.
        depth: Depth of the deepest tree that they can be.
    """

    def __init__(
        self, backbone: Backbone, heads: DraftHeads, buffers: StaticBuffers, tables: RowTables
    ) -> None:
        self._backbone, self._heads, self._buffers, self._row_tables = backbone, heads, buffers, tables
        self.rows, path_rows = tables.paths.shape
        self.depth = path_rows - 1
        self._tokens = buffers.tokens[: self.rows]
        self._hidden, self._logits = buffers.hidden[: self.rows], buffers.logits[: self.rows]
        self._chosen = buffers.chosen[: self.rows]
        self._steps = torch.arange(path_rows, device=backbone.device)
        self._causal = self._steps <= self._steps[:, None]

    def draft(self) -> None:
        """Fill ``tokens``."""
        raise NotImplementedError

    def verify(self, bucket: int) -> None:
        """One pass of the base over root and drafts: fills ``hidden`` and ``logits``.

        Args:
            bucket: KV rows that are read, at least ``length + rows``.
        """
        backbone, t = self._backbone, self._row_tables
        attention = self._attention(t.depths, t.sees, bucket, backbone.config)
        embedded, kv = backbone.embedding[self._tokens], self._buffers.kv
        self._hidden.copy_(backbone.run(embedded, lambda layer, qkv: attention(kv[layer], qkv)))
        self._logits.copy_(backbone.logits(self._hidden))

    def accept(self, rule: AcceptanceRule) -> None:
        """Accept a path: fills ``last`` and ``chosen``, and in ``result`` whether the first draft stands."""
        b, t = self._buffers, self._row_tables
        verdict = judge(rule, t, self._tokens, self._logits, b.noise.values, b.length)
        b.last.copy_(verdict.last)
        self._chosen.copy_(verdict.chosen)
        b.result[1:2].fill_(-1)
        if self.rows > 1:
            b.result[1:2].copy_(verdict.stands[1:2].long().masked_fill(t.depths[1:2] < 1, -1))

    def commit(self, bucket: int) -> None:
        """Keep the accepted path: KV rows in place, prefix layer, next root and state, and ``result``.

        Everything has the length of the longest path; rows behind the accepted ones are never seen.

        Args:
            bucket: KV rows that the prefix layer reads, at least ``length + depth + 1``.
        """
        b, t = self._buffers, self._row_tables
        path, last = t.paths[b.last][0], t.depths[b.last]
        if not t.in_place:
            b.kv.index_copy_(3, b.length + self._steps, b.kv.index_select(3, b.length + path))
        states, logits = self._hidden[path], self._logits[path]
        if self._heads.prefix is not None:
            states = self._prefix(states, bucket)
        following = self._chosen[path]
        b.accepted.copy_(last + 1)
        b.next_state.copy_(states[last][0])
        b.next_root.copy_(following[last])
        b.path_logits[: len(path)].copy_(logits)
        b.result[:1].copy_(last + 1)
        for own, values in zip(
            b.result[2:].view(3, -1),
            (self._tokens[path], following, logits.amax(-1).isfinite()),
            strict=True,
        ):
            own[: len(path)].copy_(values)

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
