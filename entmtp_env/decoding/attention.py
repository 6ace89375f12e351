"""Attention of a few rows over a KV cache, with grouped query heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.rotary import RotaryTable


class CachedAttention:
    """What all layers share in one pass over n rows behind the committed ones.

    Args:
        rotary: Position tables.
        positions: Position of each row, ``(n,)``.
        num_heads: Query heads.
        num_kv_heads: Key-value heads; divides ``num_heads``.
        length: Committed rows, which all rows see.
        mask: Boolean ``(n, n)``, true where row i sees row j; by default causal.
        dtype: Element type of queries, keys and values.
    """

    def __init__(
        self,
        rotary: RotaryTable,
        positions: Tensor,
        num_heads: int,
        num_kv_heads: int,
        length: int,
        mask: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self._rotary, self._num_heads, self._num_kv_heads = rotary, num_heads, num_kv_heads
        self._group = num_heads // num_kv_heads
        self._cos, self._sin = rotary.over_qkv(positions, num_heads + num_kv_heads, num_kv_heads)
        # A prompt's own attention: kernels that know it to be causal leave half of it out. On CUDA those that
        # take groups of query heads have no float32.
        has_kernel = positions.device.type == "cpu" or dtype != torch.float32
        self._causal = mask is None and length == 0 and has_kernel
        self._bias = None if self._causal else self._additive(positions, length, mask, dtype)

    def __call__(self, qkv: Tensor, views: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Write the rows' keys and values, and attend.

        Args:
            qkv: Unrotated queries, keys and values, one behind the other, ``(n, num_heads + 2 * num_kv_heads,
                head_dim)``.
            views: The layer's, of :meth:`~entmtp_env.decoding.kv_cache.KVCache.behind`.

        Returns:
            Shape ``(n, num_heads * head_dim)``.
        """
        n, _, head_dim = qkv.shape
        new, keys, values = views
        qkv = self._rotary.rotate(qkv, self._cos, self._sin)
        new.copy_(qkv[:, self._num_heads :].view(n, 2, self._num_kv_heads, head_dim).permute(1, 2, 0, 3))
        if self._causal:
            q = qkv[:, : self._num_heads].transpose(0, 1)[None]
            out = F.scaled_dot_product_attention(q, keys[None], values[None], is_causal=True, enable_gqa=True)
            return out[0].transpose(0, 1).reshape(n, -1)
        # Query heads of a group share their keys, so they are laid out as further rows of one head.
        q = qkv[:, : self._num_heads].view(n, self._num_kv_heads, self._group, head_dim).permute(1, 2, 0, 3)
        q = q.reshape(1, self._num_kv_heads, self._group * n, head_dim)
        out = F.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=self._bias)
        return out.view(self._num_kv_heads, self._group, n, head_dim).permute(2, 0, 1, 3).reshape(n, -1)

    def _additive(
        self, positions: Tensor, length: int, mask: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        n, device = len(positions), positions.device
        if n == 1:
            return None
        if mask is None:
            mask = torch.ones(n, n, dtype=torch.bool, device=device).tril_()
        bias = torch.zeros(n, length + n, dtype=dtype, device=device)
        bias[:, length:].masked_fill_(~mask, float("-inf"))
        return bias.repeat(self._group, 1)
