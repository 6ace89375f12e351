"""Attention of a few rows over a cache of static shape, where the number of committed rows is a tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.rotary import RotaryTable


class StaticAttention:
    """Attention of n rows behind the committed ones; what all layers share is computed once.

    Args:
        rotary: Position tables.
        length: Committed rows, ``(1,)``.
        depths: Position of each row behind them, ``(n,)``.
        sees: Which of the n rows each row sees, bool ``(n, n)``; all see the committed ones.
        bucket: Rows of the cache that are read, at least ``length + n``.
        num_heads: Query heads.
        num_kv_heads: Key-value heads; divides ``num_heads``.
        dtype: Element type of queries, keys and values.
    """

    def __init__(
        self,
        rotary: RotaryTable,
        length: Tensor,
        depths: Tensor,
        sees: Tensor,
        bucket: int,
        num_heads: int,
        num_kv_heads: int,
        dtype: torch.dtype,
    ) -> None:
        n, self._group = len(depths), num_heads // num_kv_heads
        self._rotary, self._bucket, self._num_heads = rotary, bucket, num_heads
        self._rows = length + torch.arange(n, device=length.device)
        self._cos, self._sin = rotary.over_qkv(length + depths, num_heads + num_kv_heads, num_kv_heads)
        behind = torch.arange(bucket, device=length.device) - length
        visible = (behind < 0) | ((behind < n) & sees[:, behind.clamp(0, n - 1)])
        bias = torch.zeros(n, bucket, dtype=dtype, device=length.device)
        self._bias = bias.masked_fill_(~visible, float("-inf")).repeat(self._group, 1)

    def __call__(self, cache: Tensor, qkv: Tensor) -> Tensor:
        """Write the rows' keys and values behind the committed ones, and attend.

        Args:
            cache: Keys and values of a layer, ``(2, num_kv_heads, capacity, head_dim)``.
            qkv: Unrotated queries, keys and values, one behind the other,
                ``(n, num_heads + 2 * num_kv_heads, head_dim)``.

        Returns:
            Shape ``(n, num_heads * head_dim)``.
        """
        n, (_, kv_heads, _, head_dim) = len(qkv), cache.shape
        qkv = self._rotary.rotate(qkv, self._cos, self._sin)
        new = qkv[:, self._num_heads :].view(n, 2, kv_heads, head_dim).permute(1, 2, 0, 3)
        cache.index_copy_(2, self._rows, new)
        keys, values = cache[:, :, : self._bucket]
        # Query heads of a group share their keys, so they are laid out as further rows of one head.
        q = qkv[:, : self._num_heads].view(n, kv_heads, self._group, head_dim).permute(1, 2, 0, 3)
        q = q.reshape(1, kv_heads, self._group * n, head_dim)
        out = F.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=self._bias)
        return out.view(kv_heads, self._group, n, head_dim).permute(2, 0, 1, 3).reshape(n, -1)
