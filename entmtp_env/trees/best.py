"""The trees that accept most on recorded ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from entmtp_env.trees.tree import DraftTree, Path

FloatArray = npt.NDArray[np.float64]


def node_values(ranks: npt.NDArray[np.integer], max_nodes: int) -> dict[Path, float]:
    """Value of the nodes that a tree may have: the share of positions whose ranks begin with that path.

    The expected accept length of a tree is the sum of its nodes' values (Sequoia, arXiv 2402.12374).

    Args:
        ranks: Rank of the true token at each depth given the true path, ``(positions, depth)``.
        max_nodes: Size of the largest tree; nodes that need more than that are left out.

    Returns:
        Value by path; with every node, its parent and its lower siblings.
    """
    values: dict[Path, float] = {}
    for depth in range(1, ranks.shape[1] + 1):
        prefix = ranks[:, :depth].astype(np.int64)
        # A node needs its lower siblings, those of its parent, and so on.
        fits = ((prefix >= 0) & (prefix < max_nodes)).all(axis=1)
        prefix = prefix[fits]
        prefix = prefix[(prefix + 1).sum(axis=1) <= max_nodes]
        paths, counts = np.unique(prefix, axis=0, return_counts=True)
        for path, count in zip(map(tuple, paths.tolist()), counts.tolist(), strict=True):
            values[path] = count / len(ranks)
    for *parent, rank in list(values):
        for sibling in range(rank):
            values.setdefault((*parent, sibling), 0.0)
    return values


def best_trees(ranks: npt.NDArray[np.integer], sizes: Sequence[int]) -> list[DraftTree]:
    """The trees of given sizes with the highest expected accept length over ``ranks``, exactly.

    A node needs its parent and its lower siblings. Seen as first child and next sibling, this is a binary
    tree, and the best tree of n nodes is found by dynamic programming over it.

    Args:
        ranks: Rank of the true token at each depth given the true path, ``(positions, depth)``.
        sizes: Numbers of nodes; where fewer occur in ``ranks``, the tree has fewer.

    Returns:
        One tree per size, ``best-<size>``; of equal ones the shallower.
    """
    most = max(sizes)
    values = node_values(ranks, most)
    # nodes[j, i]: i of j nodes go to the children, the other j - i to the siblings.
    left, total = np.arange(most + 1)[None, :], np.arange(most + 1)[:, None]
    possible, right = left <= total, np.maximum(total - left, 0)
    none: FloatArray = np.zeros(most + 1)

    def splits(node: Path) -> FloatArray:
        children = gains.get((*node, 0), none)
        siblings = gains.get((*node[:-1], node[-1] + 1), none)
        return np.where(possible, children[left] + siblings[right], -np.inf)

    gains: dict[Path, FloatArray] = {}
    # In reverse order a node's first child and next sibling come before it.
    for node in sorted(values, reverse=True):
        gains[node] = np.concatenate(([0.0], values[node] + splits(node).max(axis=1)[:-1]))

    trees = []
    for size in sizes:
        nodes: list[Path] = []
        todo: list[tuple[Path, int]] = [((0,), size)]
        while todo:
            node, count = todo.pop()
            if count and node in gains:
                nodes.append(node)
                to_children = int(splits(node)[count - 1].argmax())
                todo.append(((*node, 0), to_children))
                todo.append(((*node[:-1], node[-1] + 1), count - 1 - to_children))
        trees.append(DraftTree(f"best-{size}", tuple(nodes)))
    return trees


def best_trees_by_depth(ranks: npt.NDArray[np.integer], sizes: Sequence[int]) -> list[DraftTree]:
    """The trees that accept most, for each depth limit and size.

    Where the time of a step grows with the tree's size and depth and depends on nothing else of it, one of
    those for all sizes up to n has the most expected tokens per second of all trees of at most n nodes
    (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276).

    Args:
        ranks: Rank of the true token at each depth given the true path, ``(positions, depth)``.
        sizes: Numbers of nodes; none where fewer nodes occur in ``ranks`` up to a depth.

    Returns:
        The different ones of exactly those sizes, ``optimal-<size>x<depth>``, the shallow first.
    """
    found = {
        (len(tree), tree.depth): tree.nodes
        for limit in range(ranks.shape[1], 0, -1)
        for size, tree in zip(sizes, best_trees(ranks[:, :limit], sizes), strict=True)
        if len(tree) == size
    }
    shallow_first = sorted(found, key=lambda shape: (shape[1], shape[0]))
    return [DraftTree("optimal-{}x{}".format(*shape), found[shape]) for shape in shallow_first]
