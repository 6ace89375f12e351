"""A lean forward pass for Llama-family weights that transformers loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.attention import CachedAttention
from entmtp_env.decoding.half_linear import HalfLinear
from entmtp_env.decoding.kv_cache import KVCache
from entmtp_env.decoding.linear import PackedLinear, inference_linear
from entmtp_env.decoding.rms_norm import InferenceRMSNorm
from entmtp_env.decoding.rotary import RotaryTable

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2")

Attend = Callable[[int, Tensor], Tensor]


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
    # Bound methods: going through a module's call would cost microseconds, some 200 times a step.
    input_norm: Callable[[Tensor], Tensor]
    qkv: Callable[[Tensor], Tensor]
    add_out: Callable[[Tensor, Tensor], Tensor]
    post_norm: Callable[[Tensor], Tensor]
    gate_up: Callable[[Tensor], Tensor]
    add_down: Callable[[Tensor, Tensor], Tensor]


class Backbone:
    """Llama-family base model: fused QKV and gate-up products, in-place KV cache, tree masks. Batch size 1.

    Args:
        model: A loaded transformers causal LM of a supported type; its weights are copied, it may be freed.
        dtype: Element type of weights and activations; float16 on a CPU is that of the weights, and the
            activations are in float32.
        device: Where to run.

    Raises:
        ValueError: When the model is not supported.
    """

    def __init__(
        self, model: PreTrainedModel, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.config = read_config(model.config)
        self.weight_dtype, self.dtype, self.device = dtype, dtype, torch.device(device)
        if dtype is torch.float16 and self.device.type == "cpu":
            self.dtype = torch.float32
        if self.device.type == "cuda":
            # It plans anew for every length of the keys, which here is another one at every step.
            torch.backends.cuda.enable_cudnn_sdp(False)

        def place(tensor: Tensor) -> Tensor:
            return tensor.detach().to(self.device, self.dtype)

        def fuse(*modules: torch.nn.Linear) -> PackedLinear | HalfLinear:
            weight = torch.cat([place(m.weight) for m in modules])
            biases = [m.bias for m in modules]
            bias = None if biases[0] is None else torch.cat([place(b) for b in biases])
            return inference_linear(weight, bias, dtype)

        def norm(module: torch.nn.Module) -> InferenceRMSNorm:
            return InferenceRMSNorm(place(module.get_parameter("weight")), self.config.rms_norm_eps)

        core = model.model
        self.embedding = place(core.embed_tokens.weight).clone()
        self.lm_head_weight = self.embedding
        if model.lm_head.weight.data_ptr() != core.embed_tokens.weight.data_ptr():
            self.lm_head_weight = place(model.lm_head.weight).clone()
        self._lm_head = inference_linear(self.lm_head_weight, dtype=dtype)
        self.final_norm = norm(core.norm)
        self._layers = [
            _Layer(
                norm(layer.input_layernorm).forward,
                fuse(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj).forward,
                fuse(layer.self_attn.o_proj).add_to,
                norm(layer.post_attention_layernorm).forward,
                fuse(layer.mlp.gate_proj, layer.mlp.up_proj).forward,
                fuse(layer.mlp.down_proj).add_to,
            )
            for layer in core.layers
        ]
        self.inverse_frequencies = core.rotary_emb.inv_freq.detach().to(self.device)
        scaling = core.rotary_emb.attention_scaling
        self.rotary = RotaryTable(self.inverse_frequencies, self.config.max_positions, scaling, self.dtype)

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
        layers = cache.behind(n)
        if positions is None:
            positions = torch.arange(cache.length, cache.length + n, device=self.device)
        attention = CachedAttention(
            self.rotary, positions, c.num_heads, c.num_kv_heads, cache.length, mask, self.dtype
        )
        return self.run(self.embedding[tokens], lambda layer, qkv: attention(qkv, layers[layer]))

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
        counts = [c.num_heads, c.num_kv_heads, c.num_kv_heads]

        def attend(layer: int, qkv: Tensor) -> Tensor:
            q, k, v = (
                x.transpose(1, 2) for x in qkv.view(batch, length, -1, c.head_dim).split(counts, dim=2)
            )
            q, k = self.rotary.rotate(q, cos, sin), self.rotary.rotate(k, cos, sin)
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
            attend: Attention of one layer: its index and unrotated queries, keys and values, one behind
                the other, ``(n, num_heads + 2 * num_kv_heads, head_dim)``, to ``(n, num_heads * head_dim)``.

        Returns:
            Shape ``(n, hidden_size)``.
        """
        n, head_dim = len(x), self.config.head_dim
        for index, layer in enumerate(self._layers):
            x = layer.add_out(x, attend(index, layer.qkv(layer.input_norm(x)).view(n, -1, head_dim)))
            gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, dim=-1)
            x = layer.add_down(x, F.silu(gate).mul_(up))
        return self.final_norm(x)


def read_config(config: PretrainedConfig) -> BackboneConfig:
    """The shapes of a model, from its configuration alone.

    Raises:
        ValueError: When such a model is not supported.
    """
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise ValueError(
            f"model type {config.model_type!r} is not supported, only {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    if config.hidden_act != "silu":
        raise ValueError(f"activation {config.hidden_act!r} is not supported; Llama-family models use 'silu'")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("quantised weights are not supported; use the model that they were made from")
    # transformers 4 has its second name.
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope = scaling.get("rope_type", "default")
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
