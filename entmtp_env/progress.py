"""The progress bar of every command that takes more than a few seconds."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_REDRAW_EVERY = 0.5
_LINE_EVERY = 10.0
# A log is not 80 columns wide; a long name would push the counts out.
_LOG_WIDTH = 200


class _Progress(Progress):
    """A bar that is redrawn on a terminal, and a plain line now and then in a log file or a pipe."""

    _shown = float("-inf")

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        if time.monotonic() - self._shown >= (_REDRAW_EVERY if self.console.is_terminal else _LINE_EVERY):
            self._shown = time.monotonic()
            if self.console.is_terminal:
                self.refresh()
            else:
                self.console.print(self.get_renderable())


def progress_bar(console: Console | None = None) -> Progress:
    """A bar with description, counts, time spent and time left.

    Where the console is no terminal, the same columns are printed as a line every 10 s and at the end.

    Args:
        console: Where to draw; standard error by default.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    return _Progress(
        TextColumn("{task.description}"),
        *([BarColumn()] if console.is_terminal else []),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        # Drawn by advance() alone: a refresh thread would run inside the steps that are timed.
        auto_refresh=False,
        # Seconds; the default of 30 forgets steps that take as long.
        speed_estimate_period=300,
    )
