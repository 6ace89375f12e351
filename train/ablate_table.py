"""The table of an ablation, in Markdown."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

LEGEND = (
    "x static: throughput of a text over that with {static}, interquartile mean over {seeds} seeds x {texts} "
    "held-out texts, with its 95 % stratified bootstrap interval; tok/s: Σ tokens / Σ seconds of all, and of "
    "the worst and the best seed; oracle: of the best possible schedules"
)
"""What the columns mean."""


def ablation_table(what: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table.

    Args:
        what: Name of the choice.
        rows: Cells, see :meth:`~train.ablate_cell.Cell.row`.
    """
    table = Table(box=box.MARKDOWN)
    table.add_column(what, no_wrap=True)
    for header in ("x static", "95 %", "tok/s", "worst", "best", "oracle"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        rates = row["seeds"].values()
        table.add_row(
            Text(row["cell"]),
            f"{row['iqm']:.3f}",
            "–" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
            *(f"{rate:.2f}" for rate in (row["tokens_per_second"], min(rates), max(rates), row["oracle"])),
        )
    return table


def markdown(table: Table) -> str:
    """The table as plain text, lines as long as it needs."""
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines() if line.strip())
