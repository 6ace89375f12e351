"""Which device and element type to decode with: asked for, or measured."""

from __future__ import annotations

import time
from functools import cache

import torch
from torch import Tensor

from entmtp_env.decoding.half_linear import HalfLinear, can_multiply_half
from entmtp_env.decoding.linear import PackedLinear, inference_linear

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device called ``name``; ``"auto"`` is CUDA when there is one, else the CPU.

    Raises:
        ValueError: When it is neither the CPU nor a CUDA device, or there is no such CUDA device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # PyTorch knows others, which nothing here waits for when it times.
        supported = device.type in ("cpu", "cuda")
    except RuntimeError:
        supported = False
    if not supported:
        raise ValueError(f"device {name!r} is not supported; use 'auto', 'cpu', 'cuda' or 'cuda:<number>'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this PyTorch sees no CUDA device; use 'cpu' or 'auto'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r}: there are only {torch.cuda.device_count()} CUDA devices")
    return device


def choose_decoding_dtype(name: str, device: torch.device) -> torch.dtype:
    """The element type called ``name``; ``"auto"`` is what ``device`` decodes fastest with.

    A decode step has few rows, and waits for its weights. So on a CPU without fast bfloat16, these may be in
    float16 while activations are in float32 (:class:`~entmtp_env.decoding.half_linear.HalfLinear`).

    Raises:
        ValueError: When the name is unknown, or is float16 on a CPU that lacks such products.
    """
    if device.type == "cpu":
        if name == "float16":
            if can_multiply_half():
                return torch.float16
            raise ValueError(
                "dtype 'float16' on a CPU needs x86 with AVX2 and a PyTorch built with FBGEMM; use "
                "'bfloat16' or 'float32'"
            )
        if name == "auto" and not cpu_prefers(torch.bfloat16):
            return torch.float16 if can_multiply_half() and cpu_prefers(torch.float16) else torch.float32
    return choose_dtype(name, device)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The element type called ``name`` for passes of many rows; ``"auto"`` is what ``device`` runs fastest.

    Raises:
        ValueError: When the name is unknown, or is float16 on a CPU.
    """
    if name == "auto":
        if device.type == "cuda":
            # Older devices emulate bfloat16, without their matrix units.
            native = torch.cuda.is_bf16_supported(including_emulation=False)
            return torch.bfloat16 if native else torch.float16
        return torch.bfloat16 if cpu_prefers(torch.bfloat16) else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"dtype {name!r} is unknown; expected 'auto' or one of {', '.join(_DTYPES)}")
    if device.type == "cpu" and name == "float16":
        raise ValueError("float16 on a CPU serves decoding alone; use 'bfloat16' or 'float32' here")
    return _DTYPES[name]


@cache
def cpu_prefers(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies few rows faster by weights in ``dtype`` than in float32; measured once."""
    rows, width = 8, 1024
    dtypes = (torch.float32, dtype)
    seconds = dict.fromkeys(dtypes, float("inf"))
    with torch.inference_mode():
        # More weights than caches hold, as in decoding.
        layers = {
            own: [inference_linear(torch.ones(width, width, dtype=own)) for _ in range(24)] for own in dtypes
        }
        # In turn, and the best of many: another process must not decide.
        for _ in range(16):
            for own in dtypes:
                x = torch.ones(rows, width, dtype=torch.bfloat16 if own is torch.bfloat16 else torch.float32)
                seconds[own] = min(seconds[own], _time(x, layers[own]))
    return seconds[dtype] < seconds[torch.float32]


def _time(x: Tensor, layers: list[PackedLinear | HalfLinear]) -> float:
    start = time.perf_counter()
    for layer in layers:
        layer(x)
    return time.perf_counter() - start
