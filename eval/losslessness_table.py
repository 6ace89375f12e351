"""The table of losslessness, readable at 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.labels import fold_spec, label_specs
from eval.losslessness_scores import BOUND, RUN_WORDS, Losses
from eval.statistics import REFERENCE, Ratio

_LABEL_WIDTH = 26

LEGEND = (
    "nats: −log p per token under the base model at temperature 1, Σ nats ÷ Σ tokens, the logarithm of the "
    f"perplexity; gap: to {REFERENCE}, with its paired bootstrap 95 % interval over prompts; ±{BOUND}: "
    "whether it is within (the paper's bound); same: texts equal token for token; margin: what the two best "
    "tokens were apart by where the others depart, the median and the largest; repeated: share of the runs "
    f"of {RUN_WORDS} words that occurred before in the same text"
)
"""What the columns mean; said once below all tables."""


def losslessness_table(prompts: str, rows: Sequence[Losses]) -> Table:
    """Build the table of one prompt set.

    Args:
        prompts: Name of the set.
        rows: At least one.
    """
    table = Table(
        title=f"{escape(prompts)}: {rows[0].texts} texts",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("policy", no_wrap=True)
    for header in ("nats", "gap", f"±{BOUND}", "same", "margin,\nlargest", "repeated,\ngap"):
        table.add_column(header, justify="right", no_wrap=True)
    labels = label_specs(row.policy for row in rows)
    for row in rows:
        table.add_row(
            escape(fold_spec(labels[row.policy], _LABEL_WIDTH)),
            f"{row.nats:.4f}",
            escape(_folded(gap_text(row.gap))),
            row.verdict.replace("does not ", "does not\n"),
            f"{row.same}/{row.texts}",
            f"{row.median_margin:.2g}\n{max(row.margins):.2g}" if row.margins else "",
            escape(_folded(f"{row.repeated:.3f}, {gap_text(row.repeated_gap, digits=3)}")),
        )
    return table


def loss_line(task: str, method: str, row: Losses) -> str:
    """The paper's claim about perplexity for one of its methods, as a sentence for the terminal."""
    return f"{task}: {method} within {BOUND} nats per token of Vanilla: {row.verdict} ({gap_text(row.gap)})"


def gap_text(gap: Ratio, digits: int = 4) -> str:
    """A gap with its interval; by default one in nats."""
    if gap.low is None or gap.high is None:
        return f"{gap.value:+.{digits}f}"
    return f"{gap.value:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"


def _folded(gap: str) -> str:
    """With the interval below."""
    return gap.replace(" [", "\n[")
