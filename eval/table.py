"""The table of a comparison, readable at 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.labels import fold_spec, label_specs
from eval.statistics import ENOUGH, REFERENCE, Ratio
from eval.summary import PolicySummary

_LABEL_WIDTH = 19

LEGEND = (
    f"★ most tokens per second (policy's time included, prefill's not); ρ: × {REFERENCE}; "
    f"[low, high]: paired bootstrap over prompts, 95 %, too narrow for fewer than {ENOUGH}; "
    f"same text: equal to {REFERENCE}'s"
)
"""What the columns mean; said once below all tables."""


def comparison_table(prompts: str, summaries: Sequence[PolicySummary], baseline: str) -> Table:
    """Build the table of one prompt set.

    Args:
        prompts: Name of the set.
        summaries: One row each, at least one.
        baseline: The policy that ``versus_baseline`` divides by.

    Returns:
        A rich table; the row with the highest throughput is bold and starred.
    """
    count = summaries[0].prompts
    table = Table(
        title=f"{escape(prompts)}: {count} prompts",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    shows_baseline = baseline != REFERENCE
    table.add_column("policy", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    table.add_column("ρ", justify="right", no_wrap=True)
    table.add_column("τ", justify="right", no_wrap=True)
    if shows_baseline:
        table.add_column(f"× {escape(baseline)}", justify="right", overflow="fold")
    for header in ("switch", "policy\nµs", "same\ntext"):
        table.add_column(header, justify="right", no_wrap=True)
    best = max(summaries, key=lambda row: row.tokens_per_second)
    labels = label_specs(row.policy for row in summaries)
    for row in summaries:
        cells = [
            ("★ " if row is best else "  ")
            + escape(fold_spec(labels[row.policy], _LABEL_WIDTH)).replace("\n", "\n  "),
            f"{row.tokens_per_second:.1f}",
            _ratio(row.rho, digits=2),
            f"{row.tau:.2f}",
            *([_ratio(row.versus_baseline, digits=3)] if shows_baseline else []),
            f"{row.switch_rate:.0%}",
            f"{row.policy_microseconds:.0f}",
            f"{row.same_texts}/{row.prompts}",
        ]
        table.add_row(*cells, style="bold green" if row is best else None)
    return table


def _ratio(ratio: Ratio, digits: int) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{digits}f}"
    return escape(f"{ratio.value:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]")
