"""The nodes drafted so far, on the host: their path values, and the tree of the best of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import Stages
from entmtp_env.trees import DraftTree, Path

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BuiltTree:
    """A tree of drafted nodes, row 0 the root, with the tables of :class:`~entmtp_env.trees.DraftTree`.

    Attributes:
        nodes: Number of each row's node in the draft, rising, ``(rows,)``.
        parents: Parent row of each row, ``(rows,)``; the root is its own parent.
        depths: Depth of each row, ``(rows,)``.
        attends: Tree mask, ``(rows, rows)``.
    """

    nodes: Ints
    parents: Ints
    depths: Ints
    attends: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of nodes, without the root."""
        return len(self.nodes) - 1

    def draft_tree(self, name: str) -> DraftTree:
        """The same topology as a named tree, for a trace; far too slow to decode with."""
        paths: list[Path] = [()]
        children = [0] * len(self.nodes)
        for parent in self.parents[1:].tolist():
            paths.append((*paths[parent], children[parent]))
            children[parent] += 1
        return DraftTree(name, tuple(paths[1:]))


class NodeTable:
    """Path values and parents of the nodes of a draft; the arrays are made once, for all roots.

    Args:
        stages: Widths, budgets and curves.

    Attributes:
        depth: Drafted depths.
        values: Path value of each node, the root's first, ``(N + 1,)``; only those of drafted depths count.
        parents: Number of each node's parent, ``(N + 1,)``; the root is its own.
    """

    def __init__(self, stages: Stages) -> None:
        size = stages.shape.nodes + 1
        self.stages, self.depth = stages, 0
        self.values = np.ones(size)
        self.parents: Ints = np.zeros(size, dtype=np.int64)
        self._rows = np.zeros(size, dtype=np.int64)
        self._order: Ints = np.zeros(0, dtype=np.int64)
        self._counting = np.arange(size)

    def clear(self) -> None:
        """Forget the draft."""
        self.depth, self._order = 0, self._order[:0]

    def add(self, values: npt.NDArray[np.float32], expanded: npt.NDArray[np.integer]) -> None:
        """Take in the next depth.

        Args:
            values: Product of confidences of each of its nodes, ``(widths[depth],)``.
            expanded: Places of their parents, see :meth:`DraftShape.parents`.
        """
        self.depth += 1
        shape = self.stages.shape
        start, end = shape.starts[self.depth : self.depth + 2]
        parents = self.parents[start:end] = shape.parents(self.depth, expanded)
        self.values[start:end] = self.stages.calibrated(self.depth, values, self.values[parents])
        # Stable, and no node is worth more than its parent: parents and lower siblings come first.
        self._order = np.argsort(-self.values[1:end], kind="stable") + 1

    @property
    def level(self) -> npt.NDArray[np.float64]:
        """Path values of the deepest drafted depth; the root's before there is one."""
        start, end = self.stages.shape.starts[self.depth : self.depth + 2]
        return self.values[start:end]

    @property
    def descending(self) -> npt.NDArray[np.float64]:
        """Path values of all drafted nodes, the highest first."""
        return self.values[self._order]

    def require(self, count: int) -> None:
        """Check that so many nodes are drafted.

        Raises:
            ValueError: When they are not.
        """
        if not 0 <= count <= len(self._order):
            raise ValueError(
                f"{count} nodes asked for, {len(self._order)} drafted; draft another depth first"
            )

    def best(self, count: int) -> BuiltTree:
        """The tree of the drafted nodes with the highest path values.

        Raises:
            ValueError: When fewer are drafted.
        """
        self.require(count)
        nodes = np.zeros(count + 1, dtype=np.int64)
        nodes[1:] = self._order[:count]
        nodes.sort()
        self._rows[nodes] = self._counting[: count + 1]
        parents = self._rows[self.parents[nodes]]
        attends = np.zeros((count + 1, count + 1), dtype=np.bool_)
        rows = ancestors = self._counting[: count + 1]
        for _ in range(self.depth + 1):
            attends[rows, ancestors] = True
            ancestors = parents[ancestors]
        return BuiltTree(nodes, parents, self.stages.shape.depths[nodes], attends)
