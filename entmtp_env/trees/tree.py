"""A draft tree: which continuations of the root are drafted and verified together."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Path = tuple[int, ...]
"""A node, named by the child ranks from the root to it: ``(0, 2)`` is the best child's 3rd child."""


@dataclass(frozen=True)
class DraftTree:
    """The topology of one draft tree; the empty tree is plain autoregressive decoding.

    Row 0 of every table below is the root token, row ``i + 1`` is ``nodes[i]``. Nodes are kept in
    (depth, lexicographic) order, so that each depth is one contiguous slice of rows.

    Args:
        name: A name unique within a bank.
        nodes: Paths of child ranks, in any order.

    Raises:
        TypeError: When a rank is not an integer.
        ValueError: When a node is empty, negative, doubled, lacks its parent, or skips a sibling rank.
    """

    name: str
    nodes: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Sort the nodes and check that they form a tree with contiguous sibling ranks."""
        nodes = sorted((tuple(map(operator.index, node)) for node in self.nodes), key=lambda n: (len(n), n))
        present = set(nodes)
        if len(present) != len(nodes):
            raise ValueError(f"tree {self.name!r} lists a node twice")
        for node in nodes:
            if not node or min(node) < 0:
                raise ValueError(f"tree {self.name!r}: {node} is not a path of child ranks >= 0")
            if len(node) > 1 and node[:-1] not in present:
                raise ValueError(f"tree {self.name!r}: node {node} needs its parent {node[:-1]} in the tree")
            if node[-1] > 0 and (*node[:-1], node[-1] - 1) not in present:
                raise ValueError(
                    f"tree {self.name!r}: node {node} needs its sibling {(*node[:-1], node[-1] - 1)}; "
                    "the ranks of siblings are 0, 1, 2, ... without gaps"
                )
        object.__setattr__(self, "nodes", tuple(nodes))

    def __hash__(self) -> int:
        """That of the nodes, computed once: every step looks its tree up."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Of integers alone, as those of strings differ in the process that a pickled tree goes to.
        return hash(self.nodes)

    @classmethod
    def chain(cls, depth: int, name: str = "") -> DraftTree:
        """The greedy chain of ``depth`` drafts."""
        return cls(name or f"chain-{depth}", tuple((0,) * d for d in range(1, depth + 1)))

    @classmethod
    def from_paths(cls, name: str, paths: Iterable[Sequence[int]]) -> DraftTree:
        """Build a tree from any iterable of rank sequences, such as decoded JSON."""
        return cls(name, tuple(tuple(path) for path in paths))

    def __len__(self) -> int:
        """Number of drafted nodes; the root is not one of them."""
        return len(self.nodes)

    @property
    def depth(self) -> int:
        """Length of the longest path; 0 for the empty tree."""
        return len(self.nodes[-1]) if self.nodes else 0

    @property
    def max_rank(self) -> int:
        """Largest child rank; -1 for the empty tree."""
        return max((node[-1] for node in self.nodes), default=-1)

    @cached_property
    def rows(self) -> dict[Path, int]:
        """Row of each path; the root is the empty path."""
        return {(): 0} | {node: row for row, node in enumerate(self.nodes, start=1)}

    @cached_property
    def parents(self) -> npt.NDArray[np.int64]:
        """Parent row of each row, shape ``(nodes + 1,)``; the root is its own parent."""
        return np.array([0] + [self.rows[node[:-1]] for node in self.nodes], dtype=np.int64)

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """Depth of each row, shape ``(nodes + 1,)``; a row sits at position ``L + depth``."""
        return np.array([0] + [len(node) for node in self.nodes], dtype=np.int64)

    @cached_property
    def level_starts(self) -> tuple[int, ...]:
        """First row of depth 0, 1, ..., and one past the last: depth ``d`` is ``starts[d]:starts[d+1]``."""
        return tuple(int(start) for start in np.searchsorted(self.depths, np.arange(self.depth + 2)))

    @cached_property
    def attends(self) -> npt.NDArray[np.bool_]:
        """Tree mask, shape ``(nodes + 1, nodes + 1)``: row i sees row j when j is i or an ancestor of i."""
        mask = np.eye(len(self) + 1, dtype=np.bool_)
        for row in range(1, len(self) + 1):
            mask[row] |= mask[self.parents[row]]
        return mask

    @cached_property
    def greedy_depth(self) -> int:
        """How far the tree holds the greedy chain ``(0,), (0, 0), ...``."""
        return next(d for d in range(self.depth + 1) if d == self.depth or (0,) * (d + 1) not in self.rows)

    def union(self, other: DraftTree, name: str = "") -> DraftTree:
        """The tree with the nodes of both."""
        return DraftTree(name or f"{self.name}|{other.name}", tuple({*self.nodes, *other.nodes}))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the topology; the name does not count."""
        return hashlib.sha256(repr(self.nodes).encode()).hexdigest()[:16]
