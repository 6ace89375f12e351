"""Linear maps with weights in float16 and everything else in float32: half the bytes to read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# From here on a product of the weights as float32 is faster, their conversion included.
_FEW_ROWS = 64


class HalfLinear(nn.Module):
    """``y = x Wᵀ + b`` for inference on an x86 CPU, ``W`` rounded to float16, sums in float32.

    A product of few rows takes as long as reading its weights, so these take half the time of float32.
    Without units for bfloat16 nothing else that halves the bytes is as fast, or as exact: float16 keeps 11
    bits of a weight, bfloat16 8, and activations stay in float32.

    Args:
        weight: Weight, shape ``(out, in)``, on the CPU.
        bias: Bias, shape ``(out,)``, or ``None``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = weight.detach().half().contiguous()
        self.bias = None if bias is None else bias.detach().float().contiguous()
        self._packed = torch.ops.quantized.linear_prepack_fp16(self.weight.float(), self.bias)
        # Looked up once: a step makes over a hundred calls.
        self._map = torch.ops.quantized.linear_dynamic_fp16.default

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 ``x`` of shape ``(..., rows, in)`` to ``(..., rows, out)``."""
        if x.numel() <= _FEW_ROWS * x.shape[-1]:
            y: Tensor = self._map(x, self._packed)
            return y
        return F.linear(x, self.weight.float(), self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual + y`` of ``x`` of shape ``(..., rows, in)``."""
        return self.forward(x).add_(residual)


def can_multiply_half() -> bool:
    """Whether these products run here: on x86 with AVX2, in a PyTorch with FBGEMM."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and (
        torch.backends.quantized.engine in ("x86", "fbgemm")
    )
