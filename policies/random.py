"""Uniform choice among the trees: the floor of every comparison, and an explorer for recordings."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.options import whole_number

# SplitMix64 (Steele, Lea and Flood, 2014): a counter hashed to 64 random bits.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


class Random(SchedulerPolicy):
    """Each tree with equal probability, at each step.

    The generator is a counter in ``state``. An episode starts it from a hash of the seed and of its first
    observation: the same seed and prompt give the same actions, whatever else runs beside it, and other
    prompts give other actions.

    Args:
        env: The environment to schedule.
        seed: Seed, a whole number >= 0.

    Raises:
        ValueError: When the seed is none.
    """

    name = "random"

    def __init__(self, env: SchedulingEnv, seed: int = 0) -> None:
        super().__init__(env)
        seed = whole_number("seed", seed, minimum=0)
        self.options = {"seed": seed}
        weights = np.random.default_rng(seed).integers(
            2**64, size=len(self.feature_names) + 1, dtype=np.uint64, endpoint=False
        )
        self._weights, self._offset = weights[:-1], weights[-1:]

    def initial_memory(self, n: int) -> Memory:
        """The counter, uint64 ``(n,)``; 0 until the first observation is seen."""
        return (np.zeros(n, dtype=np.uint64),)

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.int64], Memory]:
        """Draw one tree per environment."""
        (counter,) = memory
        bits = np.ascontiguousarray(observations, dtype=np.float32).view(np.uint32).astype(np.uint64)
        counter = np.where(counter == 0, bits @ self._weights + self._offset, counter) + _GAMMA
        mixed = counter
        for shift, factor in _ROUNDS:
            mixed = (mixed ^ (mixed >> shift)) * factor
        mixed = mixed ^ (mixed >> _LAST_SHIFT)
        return (mixed % np.uint64(len(self.bank))).astype(np.int64), (counter,)
