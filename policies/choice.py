"""Trees picked from a bank by rule: the defaults of the schedulers, which work with any bank."""

from __future__ import annotations

from entmtp_env.trees.bank import TopologyBank
from policies.options import increasing_numbers, names


def small_tree(bank: TopologyBank) -> str:
    """T−: the tree with the fewest nodes that drafts at all, the shallower on a tie."""
    return min(bank, key=lambda tree: (not len(tree), len(tree), tree.depth)).name


def large_tree(bank: TopologyBank) -> str:
    """T+: of the trees whose depth is nearest 4 (the paper's), the one with the most nodes."""
    return max(bank, key=lambda tree: (-abs(tree.depth - 4), len(tree))).name


def tree_per_depth(bank: TopologyBank) -> tuple[str, ...]:
    """A ladder: for each depth in the bank from 1 up, the tree with the fewest nodes."""
    depths = sorted({tree.depth for tree in bank} - {0})
    return tuple(min((t for t in bank if t.depth == depth), key=len).name for depth in depths)


def read_rungs(bank: TopologyBank, trees: object) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and actions of a ladder's trees, lowest rung first; `tree_per_depth` when ``trees`` is ``None``.

    Raises:
        ValueError: When ``trees`` is no list of names, or the bank lacks one.
    """
    rungs = tree_per_depth(bank) if trees is None else names("trees", trees)
    if not rungs:
        raise ValueError(f"bank {bank.name!r} has no tree that drafts, hence no ladder; add one")
    return rungs, tuple(bank.index(rung) for rung in rungs)


def read_edges(edges: object, rungs: tuple[str, ...]) -> tuple[float, ...]:
    """The K − 1 increasing bounds between K rungs.

    Raises:
        ValueError: When they are no such numbers.
    """
    bounds = increasing_numbers("edges", edges)
    if len(bounds) != len(rungs) - 1:
        raise ValueError(
            f"a ladder of {len(rungs)} trees ({', '.join(rungs)}) needs {len(rungs) - 1} edges between them, "
            f"got {len(bounds)}: {', '.join(map(str, bounds))}"
        )
    return bounds
