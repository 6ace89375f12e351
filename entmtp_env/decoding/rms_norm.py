"""Root-mean-square norm for inference, in as few kernels as the processor allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# From here on PyTorch's own composition is as fast; below, what counts is the number of kernels.
_FEW_ROWS = 64


class InferenceRMSNorm(nn.Module):
    """``y = w x / sqrt(mean(x²) + eps)`` over the last axis, for inference.

    PyTorch composes this norm of eight kernels on a CPU, which between large matrix products find their
    code and data evicted from the caches. Of a few rows in bfloat16 it is taken as the layer norm, a single
    kernel, of ``[x, -x]``: this has mean zero and variance ``mean(x²)``.

    Args:
        weight: Shape ``(width,)``.
        eps: Added to the mean square.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight.detach().clone(), eps
        self._width = weight.numel()
        self._on_few_rows = weight.dtype is torch.bfloat16 and weight.device.type == "cpu"
        self._mirrored = torch.cat((self.weight, self.weight)) if self._on_few_rows else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` of shape ``(..., width)``."""
        width = self._width
        if self._on_few_rows and x.numel() <= _FEW_ROWS * width:
            mirrored = torch.cat((x, -x), dim=-1)
            return torch.layer_norm(mirrored, (2 * width,), self._mirrored, None, self.eps)[..., :width]
        return F.rms_norm(x, (width,), self.weight, self.eps)
