"""Draft-head checkpoints: one safetensors file with the configuration in its header."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from entmtp_env.decoding.heads import DraftHeads, HeadsConfig
from entmtp_env.files import atomic_path, parse_json

_FORMAT = "entmtp-heads-1"


def save_heads(
    heads: DraftHeads,
    path: str | Path,
    dtype: torch.dtype = torch.bfloat16,
    manifest: dict[str, object] | None = None,
) -> None:
    """Write heads atomically; neither embeddings nor LM head are stored, both belong to the base model.

    Args:
        heads: Unpacked heads.
        path: A ``.safetensors`` file.
        dtype: Element type of the stored weights.
        manifest: What made them (command, data, seed, base model); any JSON.

    Raises:
        ValueError: When the heads are packed.
    """
    _require_unpacked(heads)
    tensors = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else torch.int32).contiguous()
        for name, tensor in heads.state_dict().items()
    }
    metadata = {
        "format": _FORMAT,
        "config": json.dumps(dataclasses.asdict(heads.config)),
        "manifest": json.dumps(manifest or {}),
    }
    metadata["sha256"] = _sha256(sorted(metadata.items()), tensors)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_heads(path: str | Path) -> DraftHeads:
    """Read heads written by :func:`save_heads`, in float32 on the CPU.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When it is a folder, not such a file, is damaged, or lacks or exceeds the configuration's
            weights.
    """
    if Path(path).is_dir():
        raise ValueError(
            f"{path} is a folder of released heads: they can draft, but not be trained or published"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"no draft heads at {path}; train them with: python -m train heads --help")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(f"format {metadata.get('format')!r}, expected {_FORMAT!r}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if metadata.pop("sha256", None) != _sha256(sorted(metadata.items()), tensors):
                raise ValueError("the checksum is missing or wrong; fetch or train the file again")
            config = HeadsConfig(**parse_json(metadata["config"], "its configuration"))
        if max(config.depth, config.num_layers) > len(tensors):
            raise ValueError(f"{config.depth} heads of {config.num_layers} layers in {len(tensors)} tensors")
        if spoilt := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
            raise ValueError(f"there are numbers that are not finite in {', '.join(spoilt)}")
        # Nothing is allocated for a configuration before its shapes have proved to be those of the tensors.
        with torch.device("meta"):
            heads = DraftHeads(config, tensors["vocab_ids"])
        state = {name: t.long() if name == "vocab_ids" else t.float() for name, t in tensors.items()}
        heads.load_state_dict(state, strict=True, assign=True)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} does not hold draft heads of this project: {error}") from error
    return heads.eval()


def read_manifest(path: str | Path) -> dict[str, object]:
    """The manifest stored with heads.

    Raises:
        ValueError: When the file is damaged, or holds none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            manifest = parse_json((file.metadata() or {})["manifest"], "its manifest")
        if not isinstance(manifest, dict):
            raise TypeError("it is no JSON object")
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no manifest of draft heads: {error!r}") from error
    return manifest


def heads_fingerprint(heads: DraftHeads) -> str:
    """Hash of configuration and weights, the same for equal heads.

    Raises:
        ValueError: When the heads are packed.
    """
    _require_unpacked(heads)
    return _sha256(heads.config, heads.state_dict())[:16]


def _sha256(label: object, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(repr(label).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _require_unpacked(heads: DraftHeads) -> None:
    if heads.packed:
        raise ValueError("packed heads hold no plain weights; save or fingerprint them before pack()")
