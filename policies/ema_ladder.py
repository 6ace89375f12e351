"""The rule of production servers: a smoothed accept length moves the draft depth up and down a ladder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.choice import read_edges, read_rungs
from policies.options import number, whole_number


class EmaLadder(SchedulerPolicy):
    """Step up when nearly all that the tree can offer is accepted, step down when a lower rung would do.

    The adaptive draft length of serving engines (such as SGLang's adaptive speculative steps), over trees: an
    EMA of the accept length of the steps that drafted, one rung at a time, with warm-up, a hysteresis margin
    and a minimum dwell. The EMA carries over a switch; every episode starts at the lowest rung.

    Args:
        env: The environment to schedule.
        trees: K tree names, lowest rung first (``a|b|c`` in a spec); by default the tree with the fewest
            nodes of each depth.
        edges: K − 1 increasing accept lengths between neighbouring rungs, in drafts (``0.5|1.5``); by default
            half a draft less than the lower rung's depth, which needs rungs of increasing depth.
        alpha: Weight of the newest accept length, in (0, 1].
        warmup: Accept lengths to see before the first switch.
        margin: Go up when the EMA > edge + margin, down when it is <= edge − margin.
        dwell: Steps that a rung is kept at least.

    Raises:
        ValueError: When a tree or a feature (``accept_last``, ``last_tree``) is missing, a number is out of
            range, or an edge can never be crossed in one of the directions.
    """

    name = "ema-ladder"

    def __init__(
        self,
        env: SchedulingEnv,
        trees: str | Sequence[str] | None = None,
        edges: str | float | Sequence[float] | None = None,
        alpha: float = 0.2,
        warmup: int = 8,
        margin: float = 0.1,
        dwell: int = 4,
    ) -> None:
        super().__init__(env)
        rungs, actions = read_rungs(self.bank, trees)
        nearly_all = [self.bank[action].depth - 0.5 for action in actions[:-1]]
        bounds = read_edges(nearly_all if edges is None else edges, rungs)
        self._alpha, self._margin = number("alpha", alpha), number("margin", margin)
        self._warmup, self._dwell = whole_number("warmup", warmup, 1), whole_number("dwell", dwell, 1)
        if not 0 < self._alpha <= 1:
            raise ValueError(f"ema-ladder: alpha={alpha} must be in (0, 1]")
        if self._margin < 0:
            raise ValueError(f"ema-ladder: margin={margin} must be >= 0")
        for rung, action, edge in zip(rungs, actions, bounds, strict=False):
            depth = self.bank[action].depth
            if not (edge - self._margin >= 0 and edge + self._margin < depth):
                raise ValueError(
                    f"ema-ladder: the edge {edge} ± {self._margin} above tree {rung!r} can never be crossed "
                    f"both ways, since its accept lengths are 0 to {depth}; keep edge ± margin inside them"
                )
        self._actions = np.array(actions)
        self._rise = np.array([edge + self._margin for edge in bounds] + [np.inf])
        self._fall = np.array([-np.inf] + [edge - self._margin for edge in bounds])
        self._bank_depth = self.bank.depth
        self._drafts = np.array([len(tree) > 0 for tree in self.bank])
        self._accept_last, self._last_tree = self.feature("accept_last"), self.feature("last_tree")
        self.options = {
            "trees": rungs,
            "edges": bounds,
            "alpha": self._alpha,
            "warmup": self._warmup,
            "margin": self._margin,
            "dwell": self._dwell,
        }

    def initial_memory(self, n: int) -> Memory:
        """EMA in drafts, accept lengths seen, rung, and steps on that rung, each ``(n,)``."""
        return np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """Update the EMA with the last step, then move at most one rung."""
        ema, seen, rung, held = memory
        accepted = np.rint(observations[:, self._accept_last] * self._bank_depth)
        last = np.rint(observations[:, self._last_tree] * (len(self._drafts) - 1)).astype(np.int64)
        counted = (held > 0) & self._drafts[last]
        weight = np.where(seen == 0, 1.0, self._alpha) * counted
        ema = ema + weight * (accepted - ema)
        seen = seen + counted
        may_move = (seen >= self._warmup) & (held >= self._dwell)
        up = may_move & (ema > self._rise[rung])
        down = may_move & (ema <= self._fall[rung])
        rung = rung + up - down
        return self._actions[rung], (ema, seen, rung, np.where(up | down, 1, held + 1))
