"""The pure parts of EntMTP's offline search (arXiv 2606.27550): growing a tree, and the Pareto hull."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from entmtp_env.trees.tree import DraftTree, Path

START = DraftTree("greedy-1", ((0,),))
"""The tree that Algorithm 1 starts from."""


def candidates(tree: DraftTree, depth: int) -> list[Path]:
    """The nodes of which one may be added: the next child of the root and of every node (F of Algorithm 1).

    Args:
        tree: The tree to grow.
        depth: Depth that no node may exceed.

    Returns:
        The first child of a node without children, the next sibling of the last child of another; by depth,
        then in lexicographic order.
    """
    children = Counter(node[:-1] for node in tree.nodes)
    return [(*parent, children[parent]) for parent in ((), *tree.nodes) if len(parent) < depth]


def choose(scores: Mapping[Path, int]) -> Path:
    """The candidate to add: the highest score, then the smaller rank sum, then the shallower node.

    What still ties is decided by lexicographic order, so that a search can be repeated.

    Args:
        scores: Score of each candidate; an integer, so that rounding breaks no tie.
    """
    return min(scores, key=lambda node: (-scores[node], sum(node), len(node), node))


def grow(tree: DraftTree, node: Path) -> DraftTree:
    """The tree with one more node, named ``greedy-<nodes>``."""
    return DraftTree(f"greedy-{len(tree) + 1}", (*tree.nodes, node))


def pareto_hull(sizes: Sequence[int], values: Sequence[float]) -> list[int]:
    """The points that no other point dominates: none of at most its size has a value as high.

    Args:
        sizes: Size of each point, the smaller the better.
        values: Value of each point, the higher the better.

    Returns:
        Their indices by size; the last has the highest value. Of equal points only the first is kept.
    """
    hull, highest = [], -math.inf
    for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], -values[i])):
        if values[i] > highest:
            hull.append(i)
            highest = values[i]
    return hull
