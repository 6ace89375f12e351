"""The learning curve of a training: its points, and their TensorBoard log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class CurvePoint:
    """Averages over the held-out texts, by depth.

    Attributes:
        step: Optimiser steps so far.
        seconds: Time spent in them, earlier runs included.
        loss: Cross entropy against the mixture of the base's distribution and the written token, in nats.
        rank0: Share of rows whose best candidate is the written token; every row has its true path.
    """

    step: int
    seconds: float
    loss: list[float]
    rank0: list[float]


class CurveLog:
    """TensorBoard scalars, where TensorBoard is installed.

    At every step ``train/loss_<depth>``, ``train/gradient_norm``, ``train/learning_rate`` and
    ``train/tokens_per_second``; at every evaluation ``held_out/loss_<depth>`` and ``held_out/rank0_<depth>``.

    Args:
        folder: Where the event files go.
        step: Step from which a resumed training goes on; what an interrupted one logged later is hidden.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            print("no TensorBoard logs: pip install tensorboard for them", file=sys.stderr)
            self._writer: Any = None
        else:
            self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def training(self, step: int, losses: Sequence[float], **values: float) -> None:
        """Log a step on training texts."""
        self._write(step, "train", _by_depth("loss", losses) | values)

    def held_out(self, point: CurvePoint) -> None:
        """Log a point of the curve; it and all before it are on the disk then."""
        self._write(point.step, "held_out", _by_depth("loss", point.loss) | _by_depth("rank0", point.rank0))
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is in memory."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, group: str, values: dict[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{group}/{name}", value, step)


def _by_depth(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_{depth}": value for depth, value in enumerate(values, start=1)}
