"""What decodes: a base model with its draft heads and tokenizer, each loaded once per process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import heads_fingerprint, read_manifest
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.heads import DraftHeads, HeadArch
from entmtp_env.decoding.precision import choose_decoding_dtype, choose_device
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.staged_graph import StagedGraphDecoder
from entmtp_env.decoding.stages import Stages
from entmtp_env.fork_safety import fork_only_between
from entmtp_env.hub import find_heads, from_pretrained, is_repository
from entmtp_env.huge_pages import on_huge_pages
from entmtp_env.model_errors import named_shortage
from entmtp_env.models import PretrainedModel, command_for_own_weights, load_pretrained
from entmtp_env.prompts import Prompt, encode_prompt

SHIPPED_HEADS: dict[str, tuple[HeadArch, ...]] = {"smollm2": ("hydra-prefix", "medusa")}
"""Architectures of the heads that come with the package, by model name; ``heads="auto"`` is the first."""


@dataclass(frozen=True)
class Engine:
    """A loaded model; read-only, shared by all environments of a process.

    Attributes:
        backbone: The base model.
        heads: Draft heads attached to it.
        tokenizer: Its ``transformers`` tokenizer.
        eos_token_ids: Tokens that end a text.
        manifest: Names and fingerprints of model and heads, element type, device.
        graphs: Whether decode steps are replays of captured graphs.
        lock: Of the device; held during a timed step, so that environments do not time each other.
    """

    backbone: Backbone
    heads: DraftHeads
    tokenizer: Any
    eos_token_ids: frozenset[int]
    manifest: dict[str, str]
    graphs: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, in the model's chat template when it is a chat turn and there is one."""
        return encode_prompt(self.tokenizer, prompt)

    def decode(self, tokens: list[int]) -> str:
        """Text of token ids, without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def tree_decoder(self, **settings: Any) -> TreeDecoder:
        """A decoding session; ``settings`` are those of :class:`TreeDecoder`."""
        kind = GraphDecoder if self.graphs else TreeDecoder
        return kind(self.backbone, self.heads, eos_token_ids=self.eos_token_ids, **settings)

    def staged_decoder(self, stages: Stages, **settings: Any) -> StagedDecoder:
        """A decoding session in stages; ``settings`` are those of :class:`StagedDecoder`."""
        kind = StagedGraphDecoder if self.graphs else StagedDecoder
        return kind(self.backbone, self.heads, stages, eos_token_ids=self.eos_token_ids, **settings)


GRAPHS = "-graphs"
"""Ends the name of a device on which steps are replays of graphs."""

_engines: dict[tuple[str, str, str, str], Engine] = {}
_bases: dict[tuple[str, torch.dtype, torch.device], tuple[PretrainedModel, Backbone]] = {}
_device_locks: dict[torch.device, threading.RLock] = {}
_loading = threading.RLock()


def _locks() -> Iterator[threading.RLock]:
    yield _loading
    yield from _device_locks.values()


fork_only_between(_locks)


def get_engine(model: str, heads: str = "auto", dtype: str = "auto", device: str = "auto") -> Engine:
    """The engine of this process for these names, loaded at the first call.

    Args:
        model: A known model name, a path, or a Hugging Face repository.
        heads: ``"auto"`` for those that ship with the package, another architecture of ``SHIPPED_HEADS``, a
            ``.safetensors`` file, or a folder or Hugging Face repository (``docs/CHECKPOINTS.md``).
        dtype: ``"auto"`` (what the device decodes fastest with), ``"float32"``, ``"bfloat16"`` or
            ``"float16"``, on a CPU that of the weights alone.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, or ``"cuda-graphs"`` for steps as captured CUDA graphs
            (``"cpu-graphs"`` takes the same steps without capture, for tests).

    Raises:
        FileNotFoundError: When model or heads are not to be had; the message says what to do.
        ValueError: When a name is unknown or the heads do not fit the model.
        MemoryError: When the device has too little memory for them.
    """
    key = (model, heads, dtype, device)
    with _loading:
        if key not in _engines:
            with named_shortage(
                f"loading the model {model!r}", "choose a smaller model, another dtype or another device"
            ):
                _engines[key] = _load(*key)
        return _engines[key]


def _load(model: str, heads: str, dtype: str, device: str) -> Engine:
    device, graphs = device.removesuffix(GRAPHS), device.endswith(GRAPHS)
    path = heads_path(model, heads)
    place = choose_device(device)
    base = model, choose_decoding_dtype(dtype, place), place
    if base not in _bases:
        _bases[base] = _load_base(*base)
    pretrained, backbone = _bases[base]
    lock = _device_locks.setdefault(place, threading.RLock())
    with on_huge_pages(place):
        draft_heads = from_pretrained(str(path), backbone)
        fingerprint = heads_fingerprint(draft_heads)
        draft_heads.attach(backbone)
        draft_heads.pack()
    trained_for = read_manifest(path).get("model_fingerprint") if path.is_file() else None
    if trained_for not in (None, pretrained.fingerprint):
        command = command_for_own_weights(model)
        advice = f"; the weights that what ships for {model!r} belongs to come by: {command}" * bool(command)
        warnings.warn(
            f"the draft heads {path.name} were trained for other weights than those of {model!r}; "
            f"texts stay right, but fewer drafts may be accepted{advice}",
            stacklevel=3,
        )
    manifest = {
        "model": model,
        "model_fingerprint": pretrained.fingerprint,
        "heads": heads if is_repository(heads) else path.name,
        "heads_arch": draft_heads.config.arch,
        "heads_fingerprint": fingerprint,
        "dtype": str(backbone.weight_dtype).removeprefix("torch."),
        "device": f"{backbone.device}{GRAPHS if graphs else ''}",
    }
    return Engine(
        backbone, draft_heads, pretrained.tokenizer, pretrained.eos_token_ids, manifest, graphs, lock
    )


def _load_base(model: str, dtype: torch.dtype, device: torch.device) -> tuple[PretrainedModel, Backbone]:
    with on_huge_pages(device):
        pretrained = load_pretrained(model)
        backbone = Backbone(pretrained.model, dtype, device)
    # The backbone has the weights in a form of its own; the other copy need not stay.
    return replace(pretrained, model=None), backbone


def heads_path(model: str, heads: str) -> Path:
    """The checkpoint meant by ``heads``: a file of ours, or a folder of released ones.

    Raises:
        FileNotFoundError: When none ships for the model, or there is no such file, folder or repository.
    """
    shipped = SHIPPED_HEADS.get(model, ())
    if heads == "auto" and not shipped:
        raise FileNotFoundError(
            f"no draft heads ship for the model {model!r}, only for {', '.join(SHIPPED_HEADS)}; train some "
            "with 'python -m train heads' and pass their path as heads"
        )
    arch = shipped[0] if heads == "auto" else heads
    if arch in shipped:
        return Path(str(resources.files("entmtp_env") / "data" / "heads" / f"{model}-{arch}.safetensors"))
    try:
        return find_heads(heads)
    except FileNotFoundError as error:
        if not shipped:
            raise
        raise FileNotFoundError(f"{error}, or use those that ship: {', '.join(shipped)}") from error
