"""How wide a draft grows, depth by depth, when it is drafted in stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

_MAX_NODES = np.iinfo(np.uint16).max
"""Files keep places as 16 bits."""


@dataclass(frozen=True)
class DraftShape:
    """At depth d the ``expand[d - 1]`` best nodes of the depth before get ``children[d - 1]`` children each.

    Nodes are numbered from 1, the root being 0: depth by depth, within a depth by parent, the best one first,
    and below a parent by rank. So a parent and a lower sibling always have the smaller number.

    Args:
        expand: How many nodes are expanded to draft each depth; the root alone for the first.
        children: How many children each of them gets.

    Raises:
        ValueError: When the two do not describe a draft, or one of more than 65,535 nodes.
    """

    expand: tuple[int, ...]
    children: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that there is something to expand at every depth."""
        if not self.expand or len(self.expand) != len(self.children):
            raise ValueError(
                f"expand and children must have one entry per depth, got {self.expand} and {self.children}"
            )
        if any(type(count) is not int or count < 1 for count in (*self.expand, *self.children)):
            raise ValueError(f"expand {self.expand} and children {self.children} must be whole numbers >= 1")
        for depth, (count, width) in enumerate(zip(self.expand, (1, *self.widths), strict=False), start=1):
            if count > width:
                raise ValueError(
                    f"depth {depth} cannot expand {count} nodes: the depth before it has {width}"
                )
        if sum(self.widths) > _MAX_NODES:
            raise ValueError(f"a draft of {sum(self.widths)} nodes is too large, at most {_MAX_NODES}")

    @property
    def depth(self) -> int:
        """D, the number of stages."""
        return len(self.expand)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Nodes of depth 1, 2, ..., D."""
        return tuple(k * c for k, c in zip(self.expand, self.children, strict=True))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First number of depth 0, 1, ..., D, and N + 1: depth d is ``starts[d]:starts[d + 1]``."""
        return tuple(np.cumsum([0, 1, *self.widths]).tolist())

    @property
    def nodes(self) -> int:
        """N, the nodes of a whole draft, without the root."""
        return self.starts[-1] - 1

    @cached_property
    def depths(self) -> npt.NDArray[np.int64]:
        """Depth of each node, root first, ``(N + 1,)``."""
        return np.repeat(np.arange(self.depth + 1), (1, *self.widths))

    def parents(self, depth: int, expanded: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Numbers of the parents of a depth's nodes.

        Args:
            depth: 1, 2, ..., D.
            expanded: Places of the expanded nodes within the depth before, the best first,
                ``(..., expand[depth - 1])``.

        Returns:
            Shape ``(..., widths[depth - 1])``.
        """
        return (self.starts[depth - 1] + expanded.astype(np.int64)).repeat(self.children[depth - 1], axis=-1)
