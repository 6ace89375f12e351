"""EntMTP-l: the score picks a rung."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.choice import read_edges, read_rungs


class Ladder(SchedulerPolicy):
    """EntMTP-l (arXiv 2606.27550, ``threshold_ladder``): K consecutive intervals of the score, a tree each.

    Args:
        env: The environment to schedule.
        trees: K tree names, from the lowest interval up (``a|b|c`` in a spec); by default the tree with the
            fewest nodes of each depth.
        edges: The K − 1 increasing bounds between the intervals (``0.2|0.5``); an interval contains its upper
            bound, as T− of EntMTP^τ does. By default K equal intervals of [0, 1].
        score: The feature that is binned.

    Raises:
        ValueError: When a tree or the feature is missing, or trees and edges do not fit.
    """

    name = "ladder"

    def __init__(
        self,
        env: SchedulingEnv,
        trees: str | Sequence[str] | None = None,
        edges: str | float | Sequence[float] | None = None,
        score: str = "best_path_value",
    ) -> None:
        super().__init__(env)
        rungs, actions = read_rungs(self.bank, trees)
        equal = [k / len(rungs) for k in range(1, len(rungs))]
        bounds = read_edges(equal if edges is None else edges, rungs)
        self._actions, self._edges = np.array(actions), np.array(bounds)
        self._column = self.feature(score)
        self.options = {"trees": rungs, "edges": bounds, "score": score}

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """The tree of the interval that holds the score."""
        return self._actions[np.searchsorted(self._edges, observations[:, self._column], side="left")], memory
