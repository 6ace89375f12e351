"""Models of real shapes with random weights: to time a model without its files."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from entmtp_env.decoding import Backbone, DraftHeads, HeadsConfig
from entmtp_env.decoding.heads import HeadArch

Size = Literal["vicuna-7b", "tiny"]

# Position tables reach behind the 2,048 of Vicuna, so that a step at that length has room.
_SHAPES: dict[Size, dict[str, Any]] = {
    "vicuna-7b": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
    },
    "tiny": {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
    },
}


def random_backbone(size: Size, dtype: torch.dtype, device: torch.device) -> Backbone:
    """A Llama of the given shapes with random weights, made on the device without a second copy of them."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**_SHAPES[size], tie_word_embeddings=False)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    weights = _RandomWeights(max(sum(p.shape) for p in model.parameters()), dtype, device)
    for module in list(model.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weights.like(parameter), requires_grad=False))
    return Backbone(model, dtype, device)


def random_heads(backbone: Backbone, arch: HeadArch) -> DraftHeads:
    """Four packed heads of the published shapes over the whole vocabulary, with random weights."""
    config = HeadsConfig.for_backbone(backbone, arch, backbone.config.vocab_size)
    with backbone.device:
        heads = DraftHeads(config, torch.arange(backbone.config.vocab_size))
    heads.attach(backbone)
    heads.pack()
    return heads


class _RandomWeights:
    """Matrices that are windows of one random vector, each row shifted by one against the last.

    They take no memory until the backbone lays them out, and are as random as a product can notice: neither
    equal rows nor zeros, which draw less power and so may run faster.
    """

    def __init__(self, longest: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(0)
        # Room to begin at another place for every weight.
        self._pool = torch.randn(longest + 4096, generator=generator, dtype=dtype, device=device) * 0.02
        self._count = 0

    def like(self, parameter: Tensor) -> Tensor:
        self._count += 1
        if parameter.ndim == 1:  # norms
            return torch.ones(parameter.shape, dtype=self._pool.dtype, device=self._pool.device)
        return self._pool.as_strided(parameter.shape, (1, 1), 97 * self._count % 4096)
