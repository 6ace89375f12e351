"""The tables of a comparison on recorded texts, readable at 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.labels import fold_spec, label_specs
from eval.statistics import REFERENCE, Ratio
from eval.summary import PolicySummary

HYDRA = "hydra-default"
"""The published fixed tree that a headroom is stated against."""
ORACLE = "oracle"
"""The policy that knows every future acceptance."""

STAGED_ORACLE = "staged-oracle"
"""The same for policies that decide after every drafted depth."""

_ORACLES = (ORACLE, STAGED_ORACLE)
_LABEL_WIDTH = 21

LEGEND = (
    f"seconds are replayed, without the policy's own time; ρ: × {REFERENCE}; best static: the tree that is "
    "fastest alone on these very texts; regret: time ÷ the oracle's, for staged policies the staged one's; "
    "gap: share of the time from best static to that oracle that is saved; [low, high]: paired bootstrap "
    "over prompts, 95 %; µs: the policy's own time of a decision, all texts in one batch"
)
"""What the columns mean; said once below all tables."""


@dataclass(frozen=True)
class ReplayRow:
    """One policy on one recording.

    Attributes:
        summary: As live; ``versus_baseline`` is the ratio to the best static tree, ``policy_microseconds``
            the time of a decision in a batch of all texts, and no seconds have the policy's own in them.
        regret: Its time over the oracle's; a staged policy's over that of the staged oracle.
        gap: Share of the time between the best static tree and that oracle that it saves; ``None`` when there
            is nothing between them.
    """

    summary: PolicySummary
    regret: Ratio
    gap: float | None


@dataclass(frozen=True)
class ReplayedSet:
    """All policies on one recording.

    Attributes:
        best_static: Spec of the tree that is fastest alone; chosen on these texts, so no scheduler.
        approximate: Whether the texts depend on the schedule, so that the replay is an approximation.
        rows: The policies.
    """

    best_static: str
    approximate: bool
    rows: Sequence[ReplayRow]

    def row(self, policy: str) -> ReplayRow | None:
        """The row of a policy, if it is there."""
        return next((row for row in self.rows if row.summary.policy == policy), None)


def replay_table(name: str, replayed: ReplayedSet) -> Table:
    """Build the table of one recording.

    Args:
        name: Name of the recording.
        replayed: Its rows, at least one.

    Returns:
        A rich table; the row with the highest throughput besides the oracles' is bold and starred.
    """
    summaries = [row.summary for row in replayed.rows]
    table = _table(f"{_title(name, replayed)}: {summaries[0].prompts} recorded texts")
    table.add_column("policy", no_wrap=True)
    for header in ("tok/s", "ρ", "τ", "× best static", "regret", "gap", "µs"):
        table.add_column(header, justify="right", no_wrap=True)
    best = max((s for s in summaries if s.policy not in _ORACLES), key=lambda s: s.tokens_per_second)
    labels = label_specs(own.policy for own in summaries)
    for row in replayed.rows:
        own = row.summary
        label = escape(fold_spec(labels[own.policy], _LABEL_WIDTH)).replace("\n", "\n  ")
        table.add_row(
            ("★ " if own is best else "  ") + label,
            f"{own.tokens_per_second:.1f}",
            ratio_cell(own.rho),
            f"{own.tau:.2f}",
            ratio_cell(own.versus_baseline),
            ratio_cell(row.regret),
            "–" if row.gap is None else f"{row.gap:.0%}",
            "–" if own.policy in _ORACLES else f"{own.policy_microseconds:.1f}",
            style="bold green" if own is best else None,
        )
    return table


def headroom_table(sets: Mapping[str, ReplayedSet]) -> Table:
    """Build the table of what there is to win: best schedules, best single tree and Hydra's tree, tok/s.

    Args:
        sets: Results by recording, the oracle's among them; Hydra's tree may be missing, and without the
            staged oracle there is no column for it.
    """
    table = _table("headroom")
    table.add_column("recording", overflow="fold")
    headers = ("oracle\ntok/s", "best static\ntok/s", "hydra-default\ntok/s", "oracle ÷\nbest static")
    staged = ("staged oracle\n÷ best static",) if any(own.row(STAGED_ORACLE) for own in sets.values()) else ()
    for header in (*headers, "oracle ÷\nhydra-default", *staged):
        table.add_column(header, justify="right", no_wrap=True)
    for name, replayed in sets.items():
        oracle, best, hydra = (replayed.row(policy) for policy in (ORACLE, replayed.best_static, HYDRA))
        assert oracle is not None
        assert best is not None
        table.add_row(
            _title(name, replayed),
            f"{oracle.summary.tokens_per_second:.1f}",
            f"{best.summary.tokens_per_second:.1f}\n{escape(replayed.best_static.removeprefix('static:'))}",
            f"{hydra.summary.tokens_per_second:.1f}" if hydra else "–",
            ratio_cell(best.regret),
            ratio_cell(hydra.regret) if hydra else "–",
            *(ratio_cell(own.summary.versus_baseline) for own in [replayed.row(STAGED_ORACLE)] if own),
        )
    return table


def ratio_cell(ratio: Ratio) -> str:
    """A ratio and, below it, its interval if it has one."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}"
    return escape(f"{ratio.value:.3f}\n[{ratio.low:.3f}, {ratio.high:.3f}]")


def _title(name: str, replayed: ReplayedSet) -> str:
    return escape(name) + " (approximate replay)" * replayed.approximate


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
