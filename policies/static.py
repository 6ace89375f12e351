"""One tree for the whole text: the systems that a scheduler must beat."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv


class Static(SchedulerPolicy):
    """The same tree at every step: ``static:<tree>``.

    With the throughput-best tree of a task this is EntMTP* (arXiv 2606.27550, stage 2).

    Args:
        env: The environment to schedule.
        tree: Name of the tree.

    Raises:
        ValueError: When no tree is named, or the bank does not have it.
    """

    name = "static"
    argument: ClassVar[str | None] = "tree"
    observes = False

    def __init__(self, env: SchedulingEnv, tree: str = "") -> None:
        super().__init__(env)
        if not tree:
            raise ValueError(
                f"policy 'static' needs a tree: write static:<tree> with one of {', '.join(self.bank.names)}"
            )
        # What it sees does not matter.
        self.probe = None
        self.options = {"tree": tree}
        self._action = self.bank.index(tree)

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """The fixed action for each environment."""
        return np.full(len(observations), self._action), memory


class Autoregressive(Static):
    """Plain decoding, one token a step: the row "Vanilla", and the denominator of every speed-up."""

    name = "autoregressive"
    argument = None

    def __init__(self, env: SchedulingEnv) -> None:
        super().__init__(env, next(tree.name for tree in self._bank_of(env) if not len(tree)))
        self.options = {}


class HydraDefault(Static):
    """Hydra's published 63-node tree (arXiv 2402.05109), fixed."""

    name = "hydra-default"
    argument = None

    def __init__(self, env: SchedulingEnv) -> None:
        super().__init__(env, "hydra-default")
        self.options = {}
