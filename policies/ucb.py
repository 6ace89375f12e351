"""The bandit without context: the tree with the highest upper confidence bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.base import SchedulingEnv
from policies.online import Floats, OnlinePolicy
from policies.options import number


class Ucb(OnlinePolicy):
    """UCB1 (Auer, Cesa-Bianchi and Fischer 2002, Machine Learning 47) over the trees, on throughput.

    The arm chooser of the bandit literature on speculative decoding, such as UCBSpec (BanditSpec, arXiv
    2505.15141): each tree once, then the one with the highest mean payoff + alpha · √(2 ln t / n), of t
    steps n with that tree; :class:`~policies.online.OnlinePolicy` has the payoff. It finds the best static
    tree. In lock-step environments try different trees first, and then all take the same.

    Args:
        env: The environment to schedule; it is kept.
        alpha: Exploration, in tokens. UCB1's 1 is for payoffs between 0 and 1.
        learn: Whether to go on learning; if not, the tree with the highest mean payoff is taken.
        learned: What an earlier one learned, from a file that `save` wrote.

    Raises:
        ValueError: When a number is out of range, the environment does not tell its last step, or what was
            learned does not fit.
    """

    name = "ucb"

    def __init__(
        self,
        env: SchedulingEnv,
        alpha: float = 0.5,
        learn: bool = True,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(env, learn, ())
        self._alpha = number("alpha", alpha)
        if self._alpha < 0:
            raise ValueError(f"ucb: alpha={self._alpha} must be >= 0")
        self.learned["steps"] = np.zeros(len(self.bank))
        self._restore(learned)
        if self.learned["steps"].min() < 0:
            raise ValueError("policy 'ucb': learned steps must be >= 0")
        self.options = {"alpha": self._alpha, "learn": learn}

    def count(self, tree: int, context: Floats) -> None:
        """One more step with the tree."""
        self.learned["steps"][tree] += 1

    def choose(self, contexts: Floats) -> npt.NDArray[np.int64]:
        """The trees not tried yet; else the one with the highest bound, or mean, unless it learns."""
        steps, n = self.learned["steps"], len(contexts)
        if self._learn and not steps.all():
            return np.resize(np.flatnonzero(steps == 0), n)
        seen = np.maximum(steps, 1)
        payoffs = self.payoffs()[:, 0] / seen
        if self._learn:
            payoffs += self._alpha * np.sqrt(2 * np.log(seen.sum()) / seen)
        return np.full(n, payoffs.argmax())
