"""``python -m eval``: comparisons of policies live and replayed, and the worth of draft heads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro

from eval.compare import Compare, compare
from eval.heads import Heads, evaluate_heads
from eval.interleave import EvaluationError
from eval.losslessness import Losslessness, losslessness
from eval.paper import Paper, paper
from eval.regimes import Regimes, regimes
from eval.replay import Replay, replay
from eval.report import Report, report
from eval.sim_to_real import SimToReal, sim_to_real
from eval.trace import Trace, trace
from eval.validate import Validate, validate

_COMMANDS: dict[str, tuple[type[Any], Callable[[Any], object]]] = {
    "compare": (Compare, compare),
    "paper": (Paper, paper),
    "report": (Report, report),
    "losslessness": (Losslessness, losslessness),
    "trace": (Trace, trace),
    "validate": (Validate, validate),
    "regimes": (Regimes, regimes),
    "replay": (Replay, replay),
    "gap": (SimToReal, sim_to_real),
    "heads": (Heads, evaluate_heads),
}


def main() -> None:
    """Parse the command line and run; what a user can mend is one line on standard error and exit code 2."""
    try:
        config = tyro.extras.subcommand_cli_from_dict(
            {name: kind for name, (kind, _) in _COMMANDS.items()},
            prog="python -m eval",
            description="Evaluate schedulers, draft heads and replays of tree-based speculative decoding.",
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        run = next(run for kind, run in _COMMANDS.values() if kind is type(config))
        run(config)
    except (ValueError, OSError, MemoryError, EvaluationError) as error:
        print(f"error: {str(error) or 'no memory is left'}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
