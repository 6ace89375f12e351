"""The table of a calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from train.trial import Trial

_SHOWN = 5


def calibration_table(
    statics: Sequence[Trial], contest: Sequence[Trial], winners: Sequence[Trial], best: str, title: str
) -> Table:
    """Build the table: every tree alone, then the best of each scheduler.

    Args:
        statics: The trees.
        contest: The schedulers, and the best tree again; may be empty.
        winners: Those of the trials that stand out.
        best: Spec of the best tree.
        title: Title.
    """
    table = Table(title=title)
    table.add_column("policy", overflow="fold")
    table.add_column("")
    for heading in ("tok/s", "x best static", "tokens/step"):
        table.add_column(heading, justify="right")
    for trials, shown in ((statics, statics), (contest, _leaders(contest))):
        reference = next((trial.rate for trial in trials if trial.policy.spec == best), math.nan)
        for trial in shown:
            won = trial in winners
            numbers = f"{trial.rate:.2f}", f"{trial.rate / reference:.3f}", f"{trial.tau:.2f}"
            style = "bold" if won else None
            table.add_row(Text(trial.policy.spec), "chosen" if won else "", *numbers, style=style)
        table.add_section()
    return table


def _leaders(contest: Sequence[Trial]) -> list[Trial]:
    """The fastest few of each policy, policies in the order in which they came."""
    order = dict.fromkeys(trial.policy.name for trial in contest)
    return [
        trial
        for name in order
        for trial in sorted((t for t in contest if t.policy.name == name), key=lambda t: -t.rate)[:_SHOWN]
    ]
