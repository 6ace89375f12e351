"""Optimiser and learning-rate schedule of draft heads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from entmtp_env.decoding.heads import DraftHeads

if TYPE_CHECKING:
    from train.heads import HeadsTraining

_FINAL_SHARE = 1e-3


def make_optimizer(config: HeadsTraining, heads: DraftHeads) -> torch.optim.Optimizer:
    """AdamW for all weights."""
    return torch.optim.AdamW(
        heads.parameters(), config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
    )


def make_schedule(config: HeadsTraining, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """Linear warm-up, then a cosine down to a thousandth of the peak at the last of ``steps``."""
    warmup = min(config.warmup_steps, steps // 2)

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
        return _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + math.cos(math.pi * progress)) / 2

    return LambdaLR(optimizer, share)
