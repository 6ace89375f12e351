"""The tables of a tree search."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from train.measured_tree import MeasuredTree, fastest_by_size, throughput_hull

LEGEND = (
    "τ: tokens per step, accepted drafts and root; search: as the search estimated it, own: the tree on its "
    "own, Δ: search / own - 1; tok/s: prefill included; ×: over autoregressive; ● Pareto hull of nodes and "
    "tok/s, ★ its maximum, EntMTP*"
)
"""What the columns mean; said once below the tables."""


def frontier_table(trees: Sequence[MeasuredTree], title: str) -> Table:
    """All trees by size, as in the paper's table of biases, with their throughput.

    Args:
        trees: Trees, the autoregressive one among them; of the optimal ones only those on the hull show.
        title: Title.
    """
    table = _new_table(title)
    table.add_column("tree", overflow="fold")
    for header in ("nodes", "depth", "τ search", "τ own", "Δ %", "tok/s", "×", ""):
        table.add_column(header, justify="right", no_wrap=True)
    hull = throughput_hull(trees)
    reference = next(own for own in trees if own.kind == "autoregressive").run.rate
    for own in sorted(trees, key=lambda own: len(own.tree)):
        if own.kind == "optimal" and own not in hull:
            continue
        best = own is hull[-1]
        table.add_row(
            escape(own.tree.name),
            str(len(own.tree)),
            str(own.tree.depth),
            "" if own.estimated_tau is None else f"{own.estimated_tau:.3f}",
            f"{own.run.tau:.3f}",
            "" if own.bias is None else f"{100 * own.bias:+.2f}",
            f"{own.run.rate:.2f}",
            f"{own.run.rate / reference:.3f}",
            "★" if best else "●" if own in hull else "",
            style="bold green" if best else None,
        )
    return table


def optimality_table(trees: Sequence[MeasuredTree]) -> Table:
    """What the greedy search leaves: its tree and the fastest optimal one of each size."""
    table = _new_table("what the greedy search leaves")
    for header in ("nodes", "greedy τ", "tok/s", "optimal τ", "depth", "tok/s", "optimal / greedy"):
        table.add_column(header, justify="right", no_wrap=True)
    greedy, optimal = fastest_by_size(trees, "greedy"), fastest_by_size(trees, "optimal")
    for size in sorted(greedy.keys() & optimal.keys()):
        ours, best = greedy[size], optimal[size]
        table.add_row(
            str(size),
            f"{ours.run.tau:.3f}",
            f"{ours.run.rate:.2f}",
            f"{best.run.tau:.3f}",
            str(best.tree.depth),
            f"{best.run.rate:.2f}",
            f"{best.run.rate / ours.run.rate:.4f}",
        )
    return table


def _new_table(title: str) -> Table:
    return Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
