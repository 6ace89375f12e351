"""Where the weights of new draft heads start."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import load_heads, read_manifest
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.prefix_layer import PrefixLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def initialise(
    heads: DraftHeads,
    backbone: Backbone,
    model: PreTrainedModel,
    checkpoint: Path | None = None,
    prefix_from_base: bool = False,
) -> dict[str, object] | None:
    """Set the weights of new heads and attach them to the base.

    By default the norms alone are set, so that outputs have the scale that the base's LM head expects; the
    rest keeps PyTorch's random start.

    Args:
        heads: New heads.
        backbone: The base model.
        model: The same as transformers loaded it.
        checkpoint: Heads to take all weights from; their draft vocabulary may be another one.
        prefix_from_base: Copy the last decoder layer of ``model`` into the prefix layer, without the biases
            that its attention may have.

    Returns:
        The manifest of the checkpoint, or ``None``.

    Raises:
        FileNotFoundError: When there is no such checkpoint.
        ValueError: When its architecture is another one.
    """
    if checkpoint is not None:
        _copy_heads(heads, checkpoint)
    else:
        prefix_norms = [] if heads.prefix is None else [heads.prefix.final_norm]
        for norm in [*heads.norms, *prefix_norms]:
            norm.get_parameter("weight").copy_(backbone.final_norm.weight)
        if prefix_from_base:
            assert heads.prefix is not None, "only hydra-prefix heads have a prefix layer"
            _copy_layer(heads.prefix, model.model.layers[-1])
    heads.attach(backbone)
    return None if checkpoint is None else read_manifest(checkpoint)


def _copy_heads(heads: DraftHeads, checkpoint: Path) -> None:
    earlier = load_heads(checkpoint)
    theirs, ours = asdict(earlier.config), asdict(heads.config)
    differences = [
        f"{name} {theirs[name]}, not {value}"
        for name, value in ours.items()
        if name not in ("draft_vocab_size", "deep_vocab_size") and theirs[name] != value
    ]
    if differences:
        raise ValueError(
            f"{checkpoint} has {'; '.join(differences)}: start from heads of the same architecture for the "
            "same base model, or change the settings to theirs"
        )
    heads.load_state_dict(earlier.state_dict() | {"vocab_ids": heads.vocab_ids})


def _copy_layer(prefix: PrefixLayer, layer: nn.Module) -> None:
    sources = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
        "input_norm": ("input_layernorm",),
        "post_norm": ("post_attention_layernorm",),
    }
    for name, parts in sources.items():
        weights = tuple(layer.get_parameter(f"{part}.weight") for part in parts)
        prefix.get_parameter(f"{name}.weight").copy_(torch.cat(weights))
