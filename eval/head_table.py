"""The tables of an evaluation of draft heads: a column per set of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.draft_cost import COMMIT_ROWS, DraftCost
from eval.head_scores import SetScores
from eval.labels import fold_spec
from eval.statistics import Ratio

_LABEL_WIDTH = 24

LEGEND = (
    "rank < k: the true token is among the first k candidates, given that it was at every lower depth; "
    "τ: tokens per step; best-n: the n nodes that accept most, fitted on the other half of the texts; "
    "[low, high]: bootstrap over texts, 95 %; ×: of an autoregressive step"
)
"""What the rows mean; said once below all tables."""


def scores_table(prompts: str, scores: Mapping[str, SetScores]) -> Table:
    """Build the table of one prompt set.

    Args:
        prompts: Name of the set.
        scores: By heads, at least one.
    """
    rows = list(scores.values())
    table = _table(f"{prompts}: {rows[0].texts} texts, {rows[0].tokens} tokens", list(scores))
    table.add_row("draft vocabulary covers", *(f"{own.coverage:.2%}" for own in rows))
    table.add_row("depth 1, rank 0", *(_interval(own.first_draft, 3) for own in rows))
    table.add_section()
    for k in rows[0].found:
        label = "rank 0" if k == 1 else f"rank < {k}"
        table.add_row(f"depth 1, 2, …: {label}", *(_shares(own.found[k]) for own in rows))
    table.add_section()
    for tree in dict.fromkeys(tree for own in rows for tree in own.tau):
        table.add_row(f"τ {tree}", *(_interval(own.tau.get(tree), 3) for own in rows))
    return table


def cost_table(costs: Mapping[str, DraftCost]) -> Table:
    """Build the table of drafting costs.

    Args:
        costs: By heads, at least one.
    """
    rows = list(costs.values())
    table = _table("drafting", list(costs))
    table.add_row("autoregressive step", *(f"{1e3 * own.step:.2f} ms" for own in rows))
    for i, count in enumerate(COMMIT_ROWS):
        label = f"prefix layer, {count} row{'s' if count > 1 else ''}"
        table.add_row(label, *(_cost(own.prefix[i], own) for own in rows))
    for depth in range(max(len(own.depths) for own in rows)):
        cells = [_cost(own.depths[depth], own) if depth < len(own.depths) else "" for own in rows]
        table.add_row(f"depth {depth + 1} of hydra-default", *cells)
    table.add_row("hydra-default", *(_cost(own.tree, own) for own in rows))
    table.add_row(f"with prefix layer, {COMMIT_ROWS[-1]} rows", *(f"{own.share:.3f} ×" for own in rows))
    return table


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in heads:
        table.add_column(escape(fold_spec(name, _LABEL_WIDTH)), justify="right")
    return table


def _interval(ratio: Ratio | None, digits: int) -> str:
    if ratio is None:
        return "–"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.{digits}f}"
    return escape(f"{ratio.value:.{digits}f} [{ratio.low:.{digits}f}, {ratio.high:.{digits}f}]")


def _shares(shares: Sequence[float | None]) -> str:
    return "  ".join("–" if share is None else f"{share:.3f}" for share in shares)


def _cost(seconds: float, cost: DraftCost) -> str:
    return f"{1e3 * seconds:.2f} ms  {seconds / cost.step:.3f} ×"
