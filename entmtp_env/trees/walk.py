"""Decoding replayed on ranks: how far a tree gets from each position of a known text, in how many steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from entmtp_env.trees.tree import DraftTree


def accept_lengths(tree: DraftTree, ranks: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Accepted drafts of one step from each position.

    Args:
        tree: What is drafted.
        ranks: Rank of the true token at each depth given the true path, ``(positions, depth)``; a negative
            one, or one beyond the tree, is never among the drafts.

    Returns:
        Length of the longest prefix of each row that is a path of ``tree``, ``(positions,)``.

    Raises:
        ValueError: When the tree is deeper than the ranks go.
    """
    if tree.depth > ranks.shape[1]:
        raise ValueError(f"tree {tree.name!r} has depth {tree.depth}, the ranks only {ranks.shape[1]}")
    # Row of the child by row and rank; -1 where there is none, as for a rank beyond the widest node.
    width = max((node[-1] for node in tree.nodes), default=-1) + 1
    children = np.full((len(tree) + 1, width + 1), -1, dtype=np.int64)
    for node, row in tree.rows.items():
        if node:
            children[tree.rows[node[:-1]], node[-1]] = row
    at = np.zeros(len(ranks), dtype=np.int64)
    alive = np.ones(len(ranks), dtype=np.bool_)
    lengths = np.zeros(len(ranks), dtype=np.int64)
    for rank in ranks[:, : tree.depth].T:
        column = np.where((rank >= 0) & (rank < width), rank, width)
        child = children[at, column]
        alive &= child >= 0
        at = np.where(alive, child, at)
        lengths += alive
    return lengths


def decode_steps(accepts: npt.NDArray[np.integer]) -> list[int]:
    """Positions at which a text's steps begin.

    Args:
        accepts: Accepted drafts of a step from each position of the text, ``(tokens,)``.

    Returns:
        0 and on, each the one before plus its accepted drafts plus 1; τ is ``tokens / len(steps)``.
    """
    advance = accepts.tolist()
    steps, position = [], 0
    while position < len(advance):
        steps.append(position)
        position += advance[position] + 1
    return steps
