"""EntMTP^τ: two trees, switched by a threshold with hysteresis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.choice import large_tree, small_tree
from policies.options import number


class Threshold(SchedulerPolicy):
    """EntMTP^τ (arXiv 2606.27550): go to T+ when the score s > τ_on, back to T− when s <= τ_off; start at T−.

    Args:
        env: The environment to schedule.
        small: T−; by default the drafting tree with the fewest nodes.
        large: T+; by default, of the trees whose depth is nearest 4, the one with the most nodes.
        score: The feature read as s. The default is the published score, which always equals the base
            model's top-1 probability; ``deep_path_value`` and ``expected_accept`` carry depth.
        on: τ_on. The default is a neutral midpoint, to be replaced by calibration. The published grid, 0.001
            to 0.05, lies below nearly every value of the published score, so it picks T+ nearly always.
        off: τ_off, at most ``on``; ``on`` by default, as published.

    Raises:
        ValueError: When a tree or the feature is missing, or ``off > on``.
    """

    name = "threshold"

    def __init__(
        self,
        env: SchedulingEnv,
        small: str | None = None,
        large: str | None = None,
        score: str = "best_path_value",
        on: float = 0.5,
        off: float | None = None,
    ) -> None:
        super().__init__(env)
        small = small_tree(self.bank) if small is None else small
        large = large_tree(self.bank) if large is None else large
        self._small, self._large = self.bank.index(small), self.bank.index(large)
        self._column = self.feature(score)
        self._on = number("on", on)
        self._off = self._on if off is None else number("off", off)
        if self._off > self._on:
            raise ValueError(
                f"threshold: off={self._off} must not exceed on={self._on}; swap them or drop off"
            )
        self.options = {"small": small, "large": large, "score": score, "on": self._on, "off": self._off}

    def initial_memory(self, n: int) -> Memory:
        """Whether T+ is in use, bool ``(n,)``."""
        return (np.zeros(n, dtype=np.bool_),)

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """T+ where the score clears the threshold that applies, else T−."""
        is_large = observations[:, self._column] > np.where(memory[0], self._off, self._on)
        return np.where(is_large, self._large, self._small), (is_large,)
