"""Prompt-lookup decoding as a row of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv


class PromptLookup(SchedulerPolicy):
    """Always the longest draft that is looked up in prompt and text (Saxena, 2023).

    Args:
        env: An ``EntMTP/PromptLookup-v0`` environment.

    Raises:
        ValueError: When it is another one.
    """

    name = "prompt-lookup"
    env_id = "EntMTP/PromptLookup-v0"
    observes = False

    def __init__(self, env: SchedulingEnv) -> None:
        super().__init__(env)
        unwrapped: Any = env.unwrapped
        if not hasattr(unwrapped, "max_ngram"):
            raise ValueError(
                f"policy {self.name!r} needs an environment that looks up, as {self.env_id} does"
            )
        self._longest = len(self.bank) - 1

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """The longest chain for each environment."""
        return np.full(len(observations), self._longest), memory
