"""Draft heads as the authors of Medusa and Hydra released them.

Medusa (arXiv 2401.10774): ``medusa_lm_head.pt``. Hydra++ (arXiv 2402.05109): ``hydra_lm_head.pt``. Either may
be ``.safetensors``; ``config.json`` stands beside it. ``docs/CHECKPOINTS.md`` lists the tensors.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads, HeadArch, HeadsConfig
from entmtp_env.files import read_json

PUBLISHED_FILES = (
    "hydra_lm_head.safetensors",
    "hydra_lm_head.pt",
    "medusa_lm_head.safetensors",
    "medusa_lm_head.pt",
)
"""Names of the weights, the first found is read."""

_STACKED = ("prefix.qkv.weight", "prefix.gate_up.weight")


class _Row(NamedTuple):
    """A tensor of a released file: the weight it is, or a part of, here (``""``: none), and its shape."""

    ours: str
    shape: tuple[int, ...]


def load_published(folder: str | Path, backbone: Backbone) -> DraftHeads:
    """Read released heads, without running code, in the file's element type on the CPU.

    The copies of the base's embedding that the file may hold are left where they are.

    Args:
        folder: Folder with ``config.json`` and one of ``PUBLISHED_FILES``.
        backbone: The base model that the heads are for: a prefix layer is shaped like its layers.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When a file is damaged or would run code, the architecture is not supported, or tensors
            are missing, unexpected or of a wrong shape; all are named.
    """
    folder = Path(folder)
    path = next((folder / name for name in PUBLISHED_FILES if (folder / name).is_file()), None)
    if path is None or not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no draft heads in {folder}; expected heads.safetensors, or config.json with one of "
            f"{', '.join(PUBLISHED_FILES)}"
        )
    hydra = path.name.startswith("hydra")
    settings, tensors = _read_json(folder / "config.json"), _read_tensors(path)
    try:
        config = _config(settings, tensors, backbone, hydra)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    rows = _hydra_rows(config) if hydra else _medusa_rows(config)
    optional = _unused_rows(config) if hydra else {}
    made_for = settings.get("base_model_name_or_path")
    wanted = f"{made_for!r}, or one of its shapes" if made_for else "the one that they were trained for"
    _check(path, tensors, rows, optional, f"the base model must be {wanted}")
    _compare_embedding(path, tensors.get("input_embed_fn.weight"), backbone)
    parts: dict[str, list[Tensor]] = {}
    for name, row in rows.items():
        parts.setdefault(row.ours, []).append(tensors[name])
    state = {name: _join(path, name, weights) for name, weights in parts.items()}
    state["vocab_ids"] = torch.arange(config.draft_vocab_size)
    for index in range(config.depth):
        weight = state[f"lm_heads.{index}.weight"]
        state.setdefault(f"lm_heads.{index}.bias", weight.new_zeros(len(weight)))
    with torch.device("meta"):
        heads = DraftHeads(config, state["vocab_ids"])
    heads.load_state_dict(state, strict=True, assign=True)
    return heads.eval()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        settings = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; fetch it again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a JSON object; fetch it again")
    return settings


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged pickle can fail in any way.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as plain tensors: it is damaged, or holds code, which is never run "
            f"({type(error).__name__}: {str(error).partition('.')[0]})"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in tensors.items()
    ):
        raise ValueError(f"{path} is not a state dict; expected names with floating-point tensors")
    return tensors


def _config(
    settings: dict[str, Any], tensors: dict[str, Tensor], backbone: Backbone, hydra: bool
) -> HeadsConfig:
    arch: HeadArch = "hydra-prefix" if hydra else "medusa"
    if hydra:
        supported = {"hydra_head_arch": "prefix-mlp", "grounded_heads": True, "hidden_state_offset": 0}
        for name, value in supported.items():
            if settings.get(name, value) != value:
                raise ValueError(f"{name} {settings[name]!r} is not supported, only {value!r}")
        depth = _count(settings, "hydra_num_heads", len(tensors))
        layers = _count(settings, "hydra_num_layers", len(tensors))
    else:
        layers = _count(settings, "medusa_num_layers", len(tensors))
        # The number of heads that released configurations state is not that of their files.
        depth = max(1, sum(name.split(".")[1:] == [str(layers), "weight"] for name in tensors))
    vocab_size = backbone.config.vocab_size
    return replace(HeadsConfig.for_backbone(backbone, arch, vocab_size, depth, layers), published=True)


def _count(settings: dict[str, Any], name: str, most: int) -> int:
    value = settings.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}; expected an integer from 1 to {most}, the file's tensors")
    return value


def _hydra_rows(config: HeadsConfig) -> dict[str, _Row]:
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {"prefix_embeding_layer.norm.weight": _Row("prefix.final_norm.weight", (width,))}
    for theirs, ours, shape in (
        ("self_attn.q_proj", "qkv", (queries, width)),
        ("self_attn.k_proj", "qkv", (keys, width)),
        ("self_attn.v_proj", "qkv", (keys, width)),
        ("self_attn.o_proj", "out", (width, queries)),
        ("mlp.gate_proj", "gate_up", (inner, width)),
        ("mlp.up_proj", "gate_up", (inner, width)),
        ("mlp.down_proj", "down", (width, inner)),
        ("input_layernorm", "input_norm", (width,)),
        ("post_attention_layernorm", "post_norm", (width,)),
    ):
        rows[f"prefix_embeding_layer.layers.0.{theirs}.weight"] = _Row(f"prefix.{ours}.weight", shape)
    for head in range(config.depth):
        # Dropout layers have the even places.
        for layer in range(config.num_layers):
            read = width * (head + 2 if layer == 0 else 1)
            for theirs, ours in {"linear": "linear", "res_connection": "res"}.items():
                if layer == 0 or ours == "linear":
                    name, own = f"hydra_mlp.{head}.{2 * layer + 1}.{theirs}", _block(head, layer) + ours
                    rows[f"{name}.weight"] = _Row(f"{own}.weight", (width, read))
                    rows[f"{name}.bias"] = _Row(f"{own}.bias", (width,))
        name, vocab_size = f"hydra_lm_head.{head}.1", config.draft_vocab_size
        rows[f"{name}.weight"] = _Row(f"lm_heads.{head}.weight", (vocab_size, width))
        rows[f"{name}.bias"] = _Row(f"lm_heads.{head}.bias", (vocab_size,))
    return rows


def _unused_rows(config: HeadsConfig) -> dict[str, _Row]:
    """What a Hydra file holds of its base: embeddings, and frequencies that are rounded."""
    embedding = _Row("", (config.draft_vocab_size, config.hidden_size))
    return {
        "input_embed_fn.weight": embedding,
        "prefix_embeding_layer.embed_tokens.weight": embedding,
        "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": _Row("", (config.head_dim // 2,)),
    }


def _medusa_rows(config: HeadsConfig) -> dict[str, _Row]:
    rows, width = {}, config.hidden_size
    for head in range(config.depth):
        for layer in range(config.num_layers):
            name, own = f"{head}.{layer}.linear", f"{_block(head, layer)}linear"
            rows[f"{name}.weight"] = _Row(f"{own}.weight", (width, width))
            rows[f"{name}.bias"] = _Row(f"{own}.bias", (width,))
        lm_head = _Row(f"lm_heads.{head}.weight", (config.draft_vocab_size, width))
        rows[f"{head}.{config.num_layers}.weight"] = lm_head
    return rows


def _block(head: int, layer: int) -> str:
    """Place of a block here, where all layers but the first are one."""
    return f"mlps.{head}.{min(layer, 1)}."


def _check(
    path: Path,
    tensors: dict[str, Tensor],
    rows: dict[str, _Row],
    optional: dict[str, _Row],
    advice: str,
) -> None:
    known = rows | optional
    problems = {
        "missing": [name for name in rows if name not in tensors],
        "unexpected": sorted(tensors.keys() - known.keys()),
        "wrong in shape": [
            f"{name} {tuple(tensors[name].shape)} instead of {row.shape}"
            for name, row in known.items()
            if name in tensors and tensors[name].shape != row.shape
        ],
    }
    if any(problems.values()):
        named = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names)
        raise ValueError(
            f"{path} does not fit its configuration and the base model; {advice}. Tensors {named}"
        )


def _join(path: Path, name: str, parts: list[Tensor]) -> Tensor:
    if name in _STACKED:
        return torch.cat(parts)
    if not all(torch.equal(parts[0], part) for part in parts[1:]):
        raise ValueError(
            f"{path}: the {len(parts)} copies of {name} differ; released heads have one block there"
        )
    return parts[0]


def _compare_embedding(path: Path, theirs: Tensor | None, backbone: Backbone) -> None:
    """Warn when the heads were trained on another base of the same shape; element types may differ."""
    if theirs is None:
        return
    ours, theirs = backbone.embedding[::64].float().cpu(), theirs[::64].float()
    if not torch.allclose(ours, theirs, rtol=0.02, atol=1e-5):
        warnings.warn(
            f"the embedding in {path} is not the base model's: the draft heads were trained for another one; "
            "texts stay right, but fewer drafts may be accepted",
            stacklevel=2,
        )
