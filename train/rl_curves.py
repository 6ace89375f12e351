"""The curves of a scheduler's training in TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import Logger
from torch.utils.tensorboard import SummaryWriter

from train.rl_tally import Figures


class Curves:
    """Two runs, ``train`` and ``held_out``, so that TensorBoard draws a figure of both into one chart.

    Both have ``decode/<figure>`` with the figures of :data:`~train.rl_tally.Figures`; ``train`` has those of
    the texts that ended since the last point, with trees drawn at random, and what the algorithm logs.

    Args:
        folder: Where the runs go.
        step: Step from which a resumed training goes on; what an interrupted one logged later is hidden.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._train, self._held_out = (
            SummaryWriter(str(folder / run), purge_step=step + 1) for run in ("train", "held_out")
        )

    def training(self, step: int, figures: Figures, logger: Logger) -> None:
        """Log figures, and what the algorithm has recorded in ``logger``, which is emptied."""
        values: dict[str, Any] = dict(logger.name_to_value)
        for name, value in values.items():
            if "tensorboard" not in logger.name_to_excluded[name]:
                self._train.add_scalar(name, value, step)
        logger.dump()
        _add(self._train, step, figures)

    def held_out(self, step: int, figures: Figures) -> None:
        """Log the figures of a trial; they and all before are on the disk then."""
        _add(self._held_out, step, figures)
        self._train.flush()
        self._held_out.flush()

    def close(self) -> None:
        """Write what is in memory."""
        self._train.close()
        self._held_out.close()


def _add(writer: SummaryWriter, step: int, figures: Figures) -> None:
    for name, value in figures.items():
        writer.add_scalar(f"decode/{name}", value, step)
