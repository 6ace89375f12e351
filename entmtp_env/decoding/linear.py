"""Linear maps whose weights are laid out once for the processor's fast kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entmtp_env.decoding.half_linear import HalfLinear
from entmtp_env.decoding.rms_norm import InferenceRMSNorm

# Rows the packed layout is tuned for: a typical verify pass. Any number of rows gives the same result.
_PACK_ROWS = 16
# oneDNN builds and keeps a kernel of half a megabyte for each number of rows. Up to so many, those of trees,
# each has its own; more go in blocks of a few sizes, or every length of a prompt would stay in memory.
_OWN_ROWS = 64
_BLOCK_ROWS = 256


class PackedLinear(nn.Module):
    """``y = x Wᵀ + b`` for inference, with the weight packed for oneDNN where that pays.

    A product of few rows, as a verify pass has, then runs near the speed at which the weights are read: in
    bfloat16, where oneDNN otherwise re-orders a plain weight at every call, and in float32 on x86, where the
    other kernels are made for one row or for many. Elsewhere this is an ordinary linear map.

    Args:
        weight: Weight, shape ``(out, in)``.
        bias: Bias, shape ``(out,)``, or ``None``.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed = weight.device.type == "cpu" and _can_pack(weight.dtype)
        weight = weight.detach().contiguous()
        self.weight = weight
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)
            # Looked up once: a step makes over a hundred calls.
            self._map = torch.ops.mkldnn._linear_pointwise.default
            self._map_and_add = torch.ops.mkldnn._linear_pointwise.binary
        self.bias = None if bias is None else bias.detach().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` of shape ``(..., in)`` to ``(..., out)``."""
        if not self.packed:
            return F.linear(x, self.weight, self.bias)
        if x.numel() <= _OWN_ROWS * x.shape[-1]:
            return self._map(x, self.weight, self.bias, "none", [], "")
        return self._in_blocks(x, None)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """``residual + y`` of ``x`` of shape ``(..., in)``, in one kernel where there is one."""
        if not self.packed:
            return residual + F.linear(x, self.weight, self.bias)
        if x.numel() <= _OWN_ROWS * x.shape[-1]:
            return self._map_and_add(x, residual, self.weight, self.bias, "add")
        return self._in_blocks(x, residual)

    def _in_blocks(self, x: Tensor, residual: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        added = None if residual is None else residual.reshape(len(rows), -1)
        mapped = []
        for begin in range(0, len(rows), _BLOCK_ROWS):
            block = rows[begin : begin + _BLOCK_ROWS]
            count = len(block)
            padding = (0, 0, 0, -count % _PACK_ROWS)
            block = F.pad(block, padding)
            if added is None:
                y = self._map(block, self.weight, self.bias, "none", [], "")
            else:
                own = F.pad(added[begin : begin + _BLOCK_ROWS], padding)
                y = self._map_and_add(block, own, self.weight, self.bias, "add")
            mapped.append(y[:count])
        y = torch.cat(mapped) if len(mapped) > 1 else mapped[0]
        return y.view(*x.shape[:-1], -1)


def inference_linear(
    weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> PackedLinear | HalfLinear:
    """The fastest linear map of a weight.

    Args:
        weight: Weight, shape ``(out, in)``, on its device.
        bias: Bias, shape ``(out,)``, or ``None``.
        dtype: Element type to keep the weight in, by default its own; float16 on a CPU means activations in
            float32.
    """
    dtype = dtype or weight.dtype
    if dtype is torch.float16 and weight.device.type == "cpu":
        return HalfLinear(weight, bias)
    return PackedLinear(weight.to(dtype), None if bias is None else bias.to(dtype))


def pack_for_inference(module: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Replace the ``nn.Linear`` and ``nn.RMSNorm`` below ``module`` by their inference twins, in place.

    Args:
        module: The module.
        dtype: Element type to keep weights in, see :func:`inference_linear`; those of norms keep theirs.
    """
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, inference_linear(child.weight, child.bias, dtype))
        elif isinstance(child, nn.RMSNorm):
            assert child.eps is not None
            setattr(module, name, InferenceRMSNorm(child.weight, child.eps))
        else:
            pack_for_inference(child, dtype)


def _can_pack(dtype: torch.dtype) -> bool:
    # The two operators are what torch.compile emits for CPU linears; builds without oneDNN lack them.
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")):
        return False
    if dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype is torch.float32 and torch.backends.cpu.get_cpu_capability().startswith("AVX")
