"""``python -m benchmarks``: measurements anyone can repeat."""

from __future__ import annotations

import sys

import tyro

from benchmarks.cpu import Cpu, measure_cpu
from benchmarks.exactness import Exactness, measure_exactness
from benchmarks.gpu import Gpu, measure_gpu
from benchmarks.linear import Linear, measure_linear
from benchmarks.replay import Replay, measure_replay


def main() -> None:
    """Parse the command line and run; what a user can mend is one line on standard error and exit code 2."""
    app = tyro.extras.SubcommandApp()

    @app.command(name="cpu")
    def cpu(config: tyro.conf.OmitArgPrefixes[Cpu]) -> None:
        """Decode steps on this CPU against the limit of the machine, texts against transformers, memory."""
        measure_cpu(config)

    @app.command(name="exactness")
    def exactness(config: tyro.conf.OmitArgPrefixes[Exactness]) -> None:
        """Texts of tree decoding against autoregressive ones, in float32 and bfloat16."""
        measure_exactness(config)

    @app.command(name="gpu")
    def gpu(config: tyro.conf.OmitArgPrefixes[Gpu]) -> None:
        """Decode steps on a CUDA device against the time that reading the weights takes; needs no files."""
        measure_gpu(config)

    @app.command(name="linear")
    def linear(config: tyro.conf.OmitArgPrefixes[Linear]) -> None:
        """Matrix products of a step on this CPU, by rows and by the form of the weights; needs no files."""
        measure_linear(config)

    @app.command(name="replay")
    def replay(config: tyro.conf.OmitArgPrefixes[Replay]) -> None:
        """Speed and memory of replays."""
        measure_replay(config)

    try:
        app.cli(description="Measurements behind the project's claims.")
    except (ValueError, OSError, MemoryError) as error:
        print(f"error: {str(error) or 'no memory is left'}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
