"""The prefix layer of Hydra++: one decoder layer over the base model's hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entmtp_env.decoding.attention import CachedAttention
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.kv_cache import KVCache
from entmtp_env.decoding.rotary import RotaryTable

if TYPE_CHECKING:
    from entmtp_env.decoding.heads import HeadsConfig


class PrefixLayer(nn.Module):
    """A pre-norm decoder layer with its own final norm (arXiv 2402.05109, section 3.3)."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        width, inner = config.hidden_size, config.intermediate_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.widths = [queries, keys, keys]
        self.input_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.qkv = nn.Linear(width, queries + 2 * keys, bias=False)
        self.out = nn.Linear(queries, width, bias=False)
        self.post_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.final_norm = nn.RMSNorm(width, config.rms_norm_eps)
        self._rotary: RotaryTable | None = None

    def attach(self, backbone: Backbone) -> None:
        """Take the position tables of ``backbone``."""
        self._rotary = backbone.rotary

    def new_cache(self, capacity: int) -> KVCache:
        """A cache for one sequence of at most ``capacity`` rows."""
        weight = self.input_norm.weight
        c = self.config
        return KVCache(1, c.num_kv_heads, c.head_dim, capacity, weight.dtype, weight.device)

    def forward(self, hidden: Tensor, cache: KVCache | None = None) -> Tensor:
        """Prefix states of hidden states, causal.

        Args:
            hidden: Base hidden states after its final norm, ``(batch, rows, hidden_size)``.
            cache: Where earlier rows stand and these are kept (batch 1); without it ``hidden`` starts
                at position 0.

        Returns:
            Shape ``(batch, rows, hidden_size)``.

        Raises:
            ValueError: When the cache is full.
        """
        assert self._rotary is not None, "attach the heads to a backbone first"
        if cache is None:
            attended = self._attend(self.qkv(self.input_norm(hidden)))
        else:
            attended = self._attend_cached(self.qkv(self.input_norm(hidden)), cache)
        x = hidden + self.out(attended)
        gate, up = self.gate_up(self.post_norm(x)).chunk(2, dim=-1)
        return self.final_norm(x + self.down(F.silu(gate) * up))

    def _attend(self, qkv: Tensor) -> Tensor:
        c, (batch, rows, _) = self.config, qkv.shape
        assert self._rotary is not None
        cos, sin = self._rotary.at(torch.arange(rows, device=qkv.device))
        q, k, v = (
            x.view(batch, rows, -1, c.head_dim).transpose(1, 2) for x in qkv.split(self.widths, dim=-1)
        )
        q, k = self._rotary.rotate(q, cos, sin), self._rotary.rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(batch, rows, -1)

    def _attend_cached(self, qkv: Tensor, cache: KVCache) -> Tensor:
        c, rows, start = self.config, qkv.shape[1], cache.length
        assert self._rotary is not None
        (views,) = cache.behind(rows)
        positions = torch.arange(start, start + rows, device=qkv.device)
        attention = CachedAttention(
            self._rotary, positions, c.num_heads, c.num_kv_heads, start, None, qkv.dtype
        )
        attended = attention(qkv.view(rows, -1, c.head_dim), views)
        cache.keep(list(range(rows)))
        return attended[None]
