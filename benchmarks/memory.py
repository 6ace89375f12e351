"""Resident memory of live decoding, in a process that holds nothing else (Linux only)."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from benchmarks.interleaved import Finding
from entmtp_env.decoding.half_linear import HalfLinear
from entmtp_env.engine import Engine
from entmtp_env.live import LiveEnv
from entmtp_env.progress import progress_bar

_PARTS = 10


@dataclass(frozen=True)
class Memory:
    """Bytes of a process that decodes.

    Attributes:
        libraries: Resident before a model was loaded.
        weights: Weights of base and heads, each once.
        copies: Further copies of them, laid out for speed.
        kv: KV caches of base and prefix layer.
        loading: Peak before the first step.
        peak: Peak while it decoded.
        first: Resident, median over the first tenth of the counted steps.
        last: The same over the last tenth.
    """

    libraries: int
    weights: int
    copies: int
    kv: int
    loading: int
    peak: int
    first: int
    last: int

    def findings(self, steps: int) -> list[Finding]:
        """Megabytes (10⁶ bytes); there is one run, hence no spread."""

        def single(name: str, size: int, goal: str = "") -> Finding:
            return Finding("memory", name, size / 1e6, size / 1e6, size / 1e6, "MB", goal)

        return [
            single("peak of decoding − weights − KV", self.peak - self.weights - self.kv, "≤ 300"),
            single("before the model was loaded", self.libraries),
            single("copies of weights laid out for speed", self.copies),
            single("weights", self.weights),
            single("KV", self.kv),
            single("peak of decoding", self.peak),
            single("peak of loading", self.loading),
            single(f"growth over {steps} steps", self.last - self.first, "0"),
        ]


def measure_memory(steps: int, **settings: Any) -> Memory:
    """Decode in a process of its own, a random tree of the bank at every step, text after text.

    Args:
        steps: Steps that count; a tenth more comes before.
        settings: Of :class:`~entmtp_env.live.LiveEnv`.

    Raises:
        ValueError: When there are too few steps to compare the first with the last.
        OSError: On a system without Linux's ``/proc``.
    """
    if steps < _PARTS:
        raise ValueError(
            f"memory is compared over at least {_PARTS} steps, got {steps}; raise --memory-steps"
        )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_decode, (steps, settings))


def weight_bytes(engine: Engine) -> tuple[int, int]:
    """Bytes of the weights of base and heads, each once, and of their further copies."""
    backbone, heads = engine.backbone, engine.heads
    layers = [bound.__self__ for layer in backbone._layers for bound in vars(layer).values()]
    embeddings = {t.data_ptr(): t.nbytes for t in (backbone.embedding, backbone.lm_head_weight)}
    copies = _bytes(heads._tied_lm_heads.values())
    if backbone._lm_head.packed:
        copies += _bytes([backbone._lm_head])
    return _bytes([*layers, backbone.final_norm, *heads.modules()]) + sum(embeddings.values()), copies


def _bytes(modules: Iterable[nn.Module]) -> int:
    total = 0
    for module in modules:
        tensors = (getattr(module, name, None) for name in ("weight", "bias"))
        # A packed weight is opaque and has no nbytes.
        total += sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
        total += module.nbytes if isinstance(module, HalfLinear) else 0
    return total


def _decode(steps: int, settings: dict[str, Any]) -> Memory:
    # Of transformers, what loading a model would import.
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    libraries = _status("VmRSS")
    env = LiveEnv(**settings)
    weights, copies = weight_bytes(env.engine)
    caches = [cache for cache in (env.decoder._cache, env.decoder._prefix_cache) if cache is not None]
    loading = _status("VmHWM")
    # Begins the peak anew (proc(5)).
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    trees, resident, part, ended = random.Random(0), [], steps // _PARTS, True
    with progress_bar() as bar:
        task = bar.add_task("memory", total=part + steps)
        for _ in range(part + steps):
            if ended:
                env.reset()
            _, _, terminated, truncated, _ = env.step(trees.randrange(len(env.bank)))
            ended = terminated or truncated
            resident.append(_status("VmRSS"))
            bar.advance(task)
    return Memory(
        libraries=libraries,
        weights=weights,
        copies=copies,
        kv=sum(cache._data.nbytes for cache in caches),
        loading=loading,
        peak=_status("VmHWM"),
        first=int(np.median(resident[part : 2 * part])),
        last=int(np.median(resident[-part:])),
    )


def _status(key: str) -> int:
    """Bytes that Linux states of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
