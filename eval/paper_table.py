"""The paper's main table, its own numbers beside those measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.labels import fold_spec, label_specs
from eval.paper_claims import Claim
from eval.paper_numbers import PAPER
from eval.statistics import Ratio
from eval.summary import PolicySummary

_LABEL_WIDTH, _BASELINE_WIDTH = 20, 18

LEGEND = (
    "tok/s, ρ and ×: prefill and policy's time included; ρ: × Vanilla; τ: tokens per step; [low, high]: "
    "paired bootstrap over prompts, 95 %; paper: arXiv 2606.27550, Vicuna-7B on an A100. Typical acceptance "
    "is not lossless: the texts of the rows differ"
)
"""What the columns mean; said once below all tables."""


def paper_table(
    task: str, prompts: str, summaries: Sequence[PolicySummary], methods: Mapping[str, str], baseline: str
) -> Table:
    """Build the table of one task.

    Args:
        task: Name of the task.
        prompts: The prompt set.
        summaries: One row each, at least one.
        methods: The paper's name of each row, by the row's own; rows of others are not in it.
        baseline: The row that the others are compared with.
    """
    reported = PAPER.get(task, {})
    table = Table(
        title=f"{escape(prompts)}: {summaries[0].prompts} prompts",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    labels = label_specs(row.policy for row in summaries)
    versus = escape(methods.get(baseline) or fold_spec(labels[baseline], _BASELINE_WIDTH))
    theirs_too = ("paper\ntok/s", "paper\nρ", "paper\nτ") if reported else ()
    for header in ("tok/s", "ρ", "τ", f"× {versus}", *theirs_too):
        table.add_column(header, justify="right", no_wrap=True)
    best = max(summaries, key=lambda row: row.tokens_per_second_with_prefill)
    for row in summaries:
        method = methods.get(row.policy, "")
        spec = fold_spec(labels[row.policy], _LABEL_WIDTH)
        label = f"{method}\n{spec}" if method else spec
        cells = [
            ("★ " if row is best else "  ") + escape(label).replace("\n", "\n  "),
            f"{row.tokens_per_second_with_prefill:.1f}",
            _ratio(row.rho_with_prefill),
            f"{row.tau:.2f}",
            _ratio(row.versus_baseline_with_prefill, digits=3),
        ]
        if theirs := reported.get(method):
            cells += [f"{theirs.tokens_per_second:.1f}", f"{theirs.rho:.2f}", f"{theirs.tau:.2f}"]
        table.add_row(*cells, style="bold green" if row is best else None)
    return table


def claim_line(task: str, claim: Claim) -> str:
    """One sentence about a claim, for the terminal."""
    paper = f"; paper: {claim.reported:.2f}" if claim.reported else ""
    return (
        f"{task}: {claim.faster} faster than {claim.slower}: {claim.verdict} ({_ratio(claim.ratio)}{paper})"
    )


def _ratio(ratio: Ratio, digits: int = 2) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{digits}f}"
    return f"{ratio.value:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]"
