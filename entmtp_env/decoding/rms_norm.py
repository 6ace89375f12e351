"""Root-mean-square norm for inference, in as few kernels as the processor allows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Beyond, PyTorch's own composition is as fast; up to here, what counts is the number of kernels.
_FEW_ROWS = {torch.bfloat16: 64, torch.float32: 8}


class InferenceRMSNorm(nn.Module):
    """``y = w x / sqrt(mean(x²) + eps)`` over the last axis, for inference.

    PyTorch composes this norm of eight kernels on a CPU, which between large matrix products find their
    code and data evicted from the caches. Of a few rows it is taken as the layer norm, a single kernel, of
    ``[x, -x]``: this has mean zero and variance ``mean(x²)``.

    Args:
        weight: Shape ``(width,)``.
        eps: Added to the mean square.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight.detach().clone(), eps
        self._width = weight.numel()
        few_rows = _FEW_ROWS.get(weight.dtype, 0) if weight.device.type == "cpu" else 0
        self._few = few_rows * self._width
        self._mirrored = torch.cat((self.weight, self.weight)) if few_rows else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` of shape ``(..., width)``."""
        width = self._width
        if x.numel() <= self._few:
            mirrored = torch.cat((x, -x), dim=-1)
            return torch.layer_norm(mirrored, (2 * width,), self._mirrored, None, self.eps)[..., :width]
        return F.rms_norm(x, (width,), self.weight, self.eps)
