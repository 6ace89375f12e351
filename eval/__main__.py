"""``python -m eval``: comparisons of policies live and replayed, and the worth of draft heads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from eval.compare import Compare, compare
from eval.heads import Heads, evaluate_heads
from eval.interleave import EvaluationError
from eval.replay import Replay, replay
from eval.validate import Validate, validate

_COMMANDS: dict[type[Any], Callable[[Any], object]] = {
    Compare: compare,
    Heads: evaluate_heads,
    Replay: replay,
    Validate: validate,
}


def main() -> None:
    """Parse the command line and run; a mistake of the user is one line on standard error and exit code 2."""
    try:
        config = tyro.extras.subcommand_cli_from_dict(
            {kind.__name__.lower(): kind for kind in _COMMANDS},
            prog="python -m eval",
            description="Evaluate schedulers, draft heads and replays of tree-based speculative decoding.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        _COMMANDS[type(config)](config)
    except (ValueError, FileNotFoundError, FileExistsError, EvaluationError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
