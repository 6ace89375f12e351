"""A lean forward pass for Llama-family weights that transformers loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.kv_cache import KVCache
from entmtp_env.decoding.linear import PackedLinear
from entmtp_env.decoding.rotary import RotaryTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2")

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BackboneConfig:
    """Shapes of a Llama-family model."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_positions: int


@dataclass(frozen=True)
class _Layer:
    input_norm: Tensor
    qkv: PackedLinear
    out: PackedLinear
    post_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


class Backbone:
    """Llama-family base model: fused QKV and gate-up products, in-place KV cache, tree masks. Batch size 1.

    Args:
        model: A loaded transformers causal LM of a supported type; its weights are copied, it may be freed.
        dtype: Element type of weights and activations.
        device: Where to run.

    Raises:
        ValueError: When the architecture is not supported.
    """

    def __init__(
        self, model: PreTrainedModel, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.config = _read_config(model)
        self.dtype, self.device = dtype, torch.device(device)

        def place(tensor: Tensor) -> Tensor:
            return tensor.detach().to(self.device, dtype)

        def fuse(*modules: torch.nn.Linear) -> PackedLinear:
            weight = torch.cat([place(m.weight) for m in modules])
            biases = [m.bias for m in modules]
            return PackedLinear(weight, None if biases[0] is None else torch.cat([place(b) for b in biases]))

        core = model.model
        self.embedding = place(core.embed_tokens.weight).clone()
        self.lm_head_weight = self.embedding
        if model.lm_head.weight.data_ptr() != core.embed_tokens.weight.data_ptr():
            self.lm_head_weight = place(model.lm_head.weight).clone()
        self._lm_head = PackedLinear(self.lm_head_weight)
        self.final_norm = place(core.norm.weight).clone()
        self._layers = [
            _Layer(
                place(layer.input_layernorm.weight).clone(),
                fuse(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                fuse(layer.self_attn.o_proj),
                place(layer.post_attention_layernorm.weight).clone(),
                fuse(layer.mlp.gate_proj, layer.mlp.up_proj),
                fuse(layer.mlp.down_proj),
            )
            for layer in core.layers
        ]
        self.inverse_frequencies = core.rotary_emb.inv_freq.detach().to(self.device)
        self.rotary = RotaryTable(
            self.inverse_frequencies, self.config.max_positions, core.rotary_emb.attention_scaling, dtype
        )

    def new_cache(self, capacity: int) -> KVCache:
        """A KV cache for one sequence of at most ``capacity`` tokens.

        Raises:
            ValueError: When the model has fewer positions.
        """
        c = self.config
        if not 0 < capacity <= c.max_positions:
            raise ValueError(
                f"capacity {capacity} is outside 1..{c.max_positions}, the positions of this model"
            )
        return KVCache(c.num_layers, c.num_kv_heads, c.head_dim, capacity, self.dtype, self.device)

    def forward(
        self, tokens: Tensor, cache: KVCache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Run rows behind the committed ones; their keys and values are written, not yet kept.

        Args:
            tokens: Token ids, shape ``(n,)``.
            cache: The sequence's cache; it must have room for ``n`` rows.
            positions: Position of each row, shape ``(n,)``; by default the next ``n``.
            mask: Boolean ``(n, n)``, true where row i sees row j; by default causal. All rows see the
                committed ones.

        Returns:
            Hidden states after the final norm, shape ``(n, hidden_size)``.

        Raises:
            ValueError: When ``tokens`` is not one-dimensional, or the cache is full.
        """
        if tokens.ndim != 1:
            raise ValueError(
                f"tokens must have shape (n,), got {tuple(tokens.shape)}: batch size 1 only; "
                "use one session per sequence"
            )
        n, c = tokens.numel(), self.config
        cache.require(n)
        if positions is None:
            positions = torch.arange(cache.length, cache.length + n, device=self.device)
        cos, sin = (table.unsqueeze(1) for table in self.rotary.at(positions))
        group = c.num_heads // c.num_kv_heads
        bias = self._additive_mask(n, cache.length, group, mask)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = self.rotary.rotate(q.view(n, c.num_heads, c.head_dim), cos, sin)
            k = self.rotary.rotate(k.view(n, c.num_kv_heads, c.head_dim), cos, sin)
            keys, values = cache.write(
                layer, k.transpose(0, 1), v.view(n, c.num_kv_heads, c.head_dim).transpose(0, 1)
            )
            # Query heads of a group share their keys, so they are laid out as further rows of one head.
            q = q.view(n, c.num_kv_heads, group, c.head_dim).permute(1, 2, 0, 3)
            q = q.reshape(1, c.num_kv_heads, group * n, c.head_dim)
            out = F.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=bias)
            return out.view(c.num_kv_heads, group, n, c.head_dim).permute(2, 0, 1, 3).reshape(n, -1)

        return self.run(self.embedding[tokens], attend)

    def forward_batch(
        self, tokens: Tensor, keep: Callable[[int, Tensor, Tensor], None] | None = None
    ) -> Tensor:
        """Hidden states of whole sequences, causal and without a cache (for training and recording).

        Args:
            tokens: Token ids, shape ``(batch, length)``, padded on the right with any valid id.
            keep: Called with each layer's index, keys and values ``(batch, kv_heads, length, head_dim)``.

        Returns:
            Hidden states after the final norm, shape ``(batch, length, hidden_size)``.

        Raises:
            ValueError: When the sequences are longer than the model has positions.
        """
        batch, length = tokens.shape
        c = self.config
        if length > c.max_positions:
            raise ValueError(
                f"sequences of {length} tokens exceed the {c.max_positions} positions of this model; cut them"
            )
        cos, sin = self.rotary.at(torch.arange(length, device=self.device))

        def heads(x: Tensor, count: int) -> Tensor:
            return x.view(batch, length, count, c.head_dim).transpose(1, 2)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = self.rotary.rotate(heads(q, c.num_heads), cos, sin)
            k = self.rotary.rotate(heads(k, c.num_kv_heads), cos, sin)
            v = heads(v, c.num_kv_heads)
            if keep is not None:
                keep(layer, k, v)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return out.transpose(1, 2).reshape(batch * length, -1)

        return self.run(self.embedding[tokens.reshape(-1)], attend).view(batch, length, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits ``(n, vocab_size)`` of hidden states ``(n, hidden_size)``."""
        return self._lm_head(hidden)

    def run(self, x: Tensor, attend: Attend) -> Tensor:
        """All layers and the final norm over embedded rows ``(n, hidden_size)``.

        Args:
            x: Embeddings.
            attend: Attention of one layer: its index and unrotated queries, keys and values, each
                ``(n, heads * head_dim)``, to ``(n, num_heads * head_dim)``.

        Returns:
            Shape ``(n, hidden_size)``.
        """
        c = self.config
        widths = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
        shape = (c.hidden_size,)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(F.rms_norm(x, shape, layer.input_norm, c.rms_norm_eps)).split(widths, dim=-1)
            x = x + layer.out(attend(index, q, k, v))
            gate, up = layer.gate_up(F.rms_norm(x, shape, layer.post_norm, c.rms_norm_eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return F.rms_norm(x, shape, self.final_norm, c.rms_norm_eps)

    def _additive_mask(self, n: int, length: int, group: int, mask: Tensor | None) -> Tensor | None:
        if n == 1:
            return None
        if mask is None:
            mask = torch.ones(n, n, dtype=torch.bool, device=self.device).tril_()
        bias = torch.zeros(n, length + n, dtype=self.dtype, device=self.device)
        bias[:, length:].masked_fill_(~mask, float("-inf"))
        return bias.repeat(group, 1)


def _read_config(model: PreTrainedModel) -> BackboneConfig:
    config = model.config
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise ValueError(
            f"model type {config.model_type!r} is not supported, only {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    if config.hidden_act != "silu":
        raise ValueError(f"activation {config.hidden_act!r} is not supported; Llama-family models use 'silu'")
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise ValueError(f"rope type {rope!r} depends on the length of the text and is not supported")
    # Within its window, sliding attention is full attention; beyond it, this forward pass would be wrong.
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return BackboneConfig(
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        max_positions=min(config.max_position_embeddings, window or config.max_position_embeddings),
    )
