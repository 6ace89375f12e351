"""Linear maps with weights in float16 and everything else in float32: half the bytes to read."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class HalfLinear(nn.Module):
    """``y = x Wᵀ + b`` for inference on an x86 CPU, ``W`` rounded to float16, sums in float32.

    A product of few rows takes as long as reading its weights, so these take half the time of float32.
    Without units for bfloat16 nothing else that halves the bytes is as fast, or as exact: float16 keeps 11
    bits of a weight, bfloat16 8, and activations stay in float32 (``python -m benchmarks linear``).

    Args:
        weight: Weight, shape ``(out, in)``, on the CPU.
        bias: Bias, shape ``(out,)``, or ``None``.

    Attributes:
        packed: Always, as in a :class:`~entmtp_env.decoding.linear.PackedLinear` that is.
        nbytes: Memory of the weight and the bias.
    """

    packed = True

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        bias = None if bias is None else bias.detach().float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().float(), bias)
        self.nbytes = 2 * weight.numel() + (0 if bias is None else bias.nbytes)
        # Looked up once: a step makes over a hundred calls.
        self._map = torch.ops.quantized.linear_dynamic_fp16.default

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 ``x`` of shape ``(..., rows, in)`` to ``(..., rows, out)``."""
        y: Tensor = self._map(x, self._packed)
        return y

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual + y`` of ``x`` of shape ``(..., rows, in)``."""
        return self.forward(x).add_(residual)


def can_multiply_half() -> bool:
    """Whether these products run here: on x86 with AVX2, in a PyTorch with FBGEMM."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and (
        torch.backends.quantized.engine in ("x86", "fbgemm")
    )
