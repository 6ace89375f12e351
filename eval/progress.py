"""Progress of a timed run: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def episode_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show progress on standard error.

    Args:
        total: Episodes to come.

    Yields:
        A function to call after each episode, with a word on what runs.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_printer(total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # No refresh thread: it would run inside the steps that are timed.
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("episodes", total=total)

        def advance(what: str) -> None:
            bar.update(task, advance=1, description=what, refresh=True)

        yield advance


def _line_printer(total: int) -> Callable[[str], None]:
    start = last = time.monotonic()
    done = 0

    def advance(what: str) -> None:
        nonlocal last, done
        done += 1
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES or done == total:
            last = now
            elapsed, left = (
                timedelta(seconds=round(s)) for s in (now - start, (now - start) / done * (total - done))
            )
            print(
                f"{what}: {done}/{total} episodes, {elapsed} elapsed, {left} left",
                file=sys.stderr,
                flush=True,
            )

    return advance
