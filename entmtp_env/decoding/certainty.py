"""How sure a distribution is, and of what, in the fewest passes over its logits."""

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


def certainty_of(logits: Tensor) -> tuple[float, float]:
    """:func:`certainty` of one distribution, ``(V,)``, on the host: the fewest kernels, and one transfer."""
    below_top = logits.float()
    below_top = below_top - below_top.amax()
    odds = below_top.exp()
    total, weighted = torch.stack((odds.sum(), torch.dot(odds, below_top))).tolist()
    return 1 / total, (math.log(total) - weighted / total) / math.log(max(2, len(logits)))


def most_likely(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The tokens with the greatest logits, best first, and their probabilities, both ``(..., count)``."""
    # Distinct logits may share a probability, so the order is that of the logits.
    index = logits.topk(count, dim=-1).indices
    return index, logits.softmax(-1).gather(-1, index)
