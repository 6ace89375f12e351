"""The nodes drafted so far, on the host: their path values, and the tree of the best of them."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Path values and parents of the nodes of a draft, in plain floats: for so few, arrays take longer.

    Args:
        stages: Widths, budgets and curves.

    Attributes:
        depth: Drafted depths.
        values: Path value of each node, the root's first.
        parents: Number of each node's parent; the root is its own.
    """

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        self.clear()

    def clear(self) -> None:
        """Forget the draft."""
        self.depth = 0
        self.values, self.parents = [1.0], [0]
        self._order: list[int] = []

    def add(self, values: Sequence[float], expanded: Sequence[int]) -> None:
        """Take in the next depth.

        Args:
            values: Product of confidences of each of its nodes, ``(widths[depth],)``; finite.
            expanded: Places of their parents, see :meth:`DraftShape.parents`.
        """
        self.depth += 1
        shape, own = self.stages.shape, self.values
        above, children = shape.starts[self.depth - 1], shape.children[self.depth - 1]
        curve = self.stages.curves[self.depth - 1].at if self.stages.curves else float
        for index, place in enumerate(expanded):
            parent = above + place
            most = own[parent]
            self.parents += [parent] * children
            own += [min(curve(value), most) for value in values[index * children : (index + 1) * children]]
        # Stable, and no node is worth more than its parent: parents and lower siblings come first.
        self._order = sorted(range(1, len(own)), key=own.__getitem__, reverse=True)

    @property
    def level(self) -> list[float]:
        """Path values of the deepest drafted depth; the root's before there is one."""
        return self.values[self.stages.shape.starts[self.depth] :]

    @property
    def descending(self) -> list[float]:
        """Path values of all drafted nodes, the highest first."""
        return [self.values[node] for node in self._order]

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
        nodes = [0, *sorted(self._order[:count])]
        row_of = {node: row for row, node in enumerate(nodes)}
        parents = np.array([row_of[self.parents[node]] for node in nodes])
        attends = np.zeros((count + 1, count + 1), dtype=np.bool_)
        rows = ancestors = np.arange(count + 1)
        for _ in range(self.depth + 1):
            attends[rows, ancestors] = True
            ancestors = parents[ancestors]
        return BuiltTree(np.array(nodes), parents, self.stages.shape.depths[nodes], attends)
