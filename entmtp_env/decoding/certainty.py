"""How sure a distribution is: its top probability and its entropy, in the fewest passes over its logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def certainty(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probability of the most likely token, and entropy divided by ln V.

    Args:
        logits: Shape ``(..., V)``, any element type.

    Returns:
        Both float32, shape ``(...)``.
    """
    logits = logits.float()
    below_top = logits - logits.amax(-1, keepdim=True)
    odds = below_top.exp()
    total = odds.sum(-1)
    entropy = total.log() - torch.linalg.vecdot(odds, below_top) / total
    return 1 / total, entropy / math.log(max(2, logits.shape[-1]))
