"""``python -m benchmarks``: measurements anyone can repeat."""

from __future__ import annotations

import tyro

from benchmarks.exactness import Exactness, measure_exactness
from benchmarks.replay import Replay, measure_replay


def main() -> None:
    """Parse the command line and run."""
    app = tyro.extras.SubcommandApp()

    @app.command(name="exactness")
    def exactness(config: tyro.conf.OmitArgPrefixes[Exactness]) -> None:
        """Texts of tree decoding against autoregressive ones, in float32 and bfloat16."""
        measure_exactness(config)

    @app.command(name="replay")
    def replay(config: tyro.conf.OmitArgPrefixes[Replay]) -> None:
        """Speed and memory of replays."""
        measure_replay(config)

    app.cli(description="Measurements behind the project's claims.")


if __name__ == "__main__":
    main()
