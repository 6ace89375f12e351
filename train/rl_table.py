"""The table of a scheduler's training."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from train.rl_tally import Figures


def training_table(rows: Mapping[str, Figures], title: str) -> Table:
    """Build the table.

    Args:
        rows: Figures by policy; the first is the best static tree.
        title: Title.
    """
    table = Table(title=title)
    table.add_column("policy", overflow="fold")
    reference, *_ = (figures["tokens_per_second"] for figures in rows.values())
    for heading in ("tok/s", "x best static", "tokens/step", "regret", "switches"):
        table.add_column(heading, justify="right")
    for policy, figures in rows.items():
        table.add_row(
            Text(policy),
            f"{figures['tokens_per_second']:.2f}",
            f"{figures['tokens_per_second'] / reference:.3f}",
            f"{figures['accept_length'] + 1:.2f}",
            f"{figures['regret']:.3f}",
            f"{figures.get('switch_rate', 0.0):.0%}",
        )
    return table
