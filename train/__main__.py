"""``python -m train``: texts, draft heads, recordings, cost tables, trees, banks and calibrated policies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from train.ablate import Ablation, ablate
from train.bank import Bank, choose_bank
from train.calibrate import Calibrate, calibrate
from train.costs import Costs, measure_costs
from train.distill import Distill, distill
from train.export import Export, export
from train.heads import HeadsTraining, train_heads
from train.publish import Publish, publish
from train.record import Record, record
from train.rl import SchedulerTraining, train_scheduler
from train.staged import StagedTraining, train_staged
from train.stages import StagesCommand, make_stages
from train.trees import Trees, search_trees
from train.value import ValueTraining, train_value

_COMMANDS: dict[type[Any], Callable[[Any], object]] = {
    Ablation: ablate,
    Distill: distill,
    Publish: publish,
    StagesCommand: make_stages,
    StagedTraining: train_staged,
    HeadsTraining: train_heads,
    Trees: search_trees,
    Bank: choose_bank,
    Calibrate: calibrate,
    ValueTraining: train_value,
    SchedulerTraining: train_scheduler,
    Record: record,
    Export: export,
    Costs: measure_costs,
}
"""What runs for each configuration; a command has the name of its module."""


def main(args: list[str] | None = None) -> int:
    """Parse the command line and run.

    Args:
        args: The arguments; those of the process by default.

    Returns:
        Exit status: 0, 2 when a setting, a file or too little memory is at fault, which standard error names,
        or 130 when interrupted.
    """
    try:
        config = tyro.extras.subcommand_cli_from_dict(
            {kind.__module__.rpartition(".")[-1]: kind for kind in _COMMANDS},
            prog="python -m train",
            description="Write texts, train heads, record and price decoding, fit trees, train schedulers.",
            args=args,
        )
        _COMMANDS[type(config)](config)
    except (ValueError, OSError, MemoryError, FloatingPointError) as error:
        print(f"python -m train: error: {str(error) or 'no memory is left'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "python -m train: interrupted; run the same command again: it goes on where it stopped if its "
            "--help says so, else it begins anew",
            file=sys.stderr,
        )
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
