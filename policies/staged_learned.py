"""A trained network that decides after every drafted depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import Stages
from policies.base import Memory, SchedulingEnv
from policies.network import Network
from policies.network_policy import NetworkPolicy


class StagedLearned(NetworkPolicy):
    """The legal decision to which a trained network gives most: ``staged-learned@file.npz``.

    Args:
        env: A staged environment.
        network: F observations to an output for each action.
        file: Where it was read from; it only shows in `spec`.

    Raises:
        ValueError: When the environment has no stages, or the network does not fit.
    """

    name = "staged-learned"
    env_id = "EntMTP/Staged-v0"

    def __init__(self, env: SchedulingEnv, network: Network, file: str = "") -> None:
        unwrapped: Any = env.unwrapped
        if not isinstance(unwrapped.bank, Stages):
            raise ValueError(f"policy {self.name!r} needs a staged environment, such as {self.env_id}")
        super().__init__(env, network, file)
        stages = unwrapped.bank
        self._stage, self._depth = self.feature("stage"), stages.depth
        # Added to the outputs, it leaves only the legal ones.
        self._bars = np.where(stages.masks, np.float32(0), np.float32(-np.inf))

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], Memory | None]:
        """Choose actions as the base class does; for one observation by the shortest way: it waits."""
        if observation.shape != (len(self.feature_names),):
            return super().predict(observation, state, episode_start, deterministic)
        drafted = round(observation.item(self._stage) * self._depth)
        return np.array((self.network(observation) + self._bars[drafted]).argmax()), None

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """The legal action with the greatest output, the first of equals."""
        drafted = np.rint(observations[:, self._stage] * self._depth).astype(np.int64)
        return (self.network(observations) + self._bars[drafted]).argmax(axis=1), memory
