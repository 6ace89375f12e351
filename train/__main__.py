"""``python -m train``: draft heads and calibrated policies."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from train.calibrate import Calibrate, calibrate
from train.heads import HeadsTraining, train_heads

_Command = (
    Annotated[HeadsTraining, tyro.conf.subcommand("heads")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
)


def main(args: list[str] | None = None) -> int:
    """Parse the command line and run.

    Args:
        args: The arguments; those of the process by default.

    Returns:
        Exit status: 0, or 2 when a setting or a file is at fault, which standard error names.
    """
    try:
        command: HeadsTraining | Calibrate = tyro.cli(
            _Command,  # type: ignore[arg-type]
            prog="python -m train",
            description="Train draft heads, and calibrate schedulers.",
            args=args,
            config=(tyro.conf.OmitSubcommandPrefixes,),
        )
        if isinstance(command, HeadsTraining):
            train_heads(command)
        else:
            calibrate(command)
    except (ValueError, FileNotFoundError) as error:
        print(f"python -m train: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
