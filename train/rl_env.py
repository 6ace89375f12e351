"""A training environment's log: figures of what was decoded, and the actions that lead back to its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from entmtp_env.decoding.stages import DEEPER, Stages
from train.rl_tally import Figures, Tally

StepResult = tuple[
    npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]
]

_NONE = -1
"""Stands for the tree of the step before a text's first."""


class DecodingLog(VecEnvWrapper):
    """Passes everything through, and keeps account.

    A replay is deterministic: after a reset with the same seed, the same actions lead to the same state. So
    the actions are all that a resumed training needs of its environments.

    Args:
        venv: N environments as of :class:`~entmtp_env.replay.sb3.ReplaySB3VecEnv`, with K trees, or of its
            staged twin, where a step is all decisions up to one that verifies.
        least_seconds: Time of the best possible schedule by prompt id.

    Attributes:
        actions: Every action since the reset, int16 ``(N,)`` a step.
    """

    def __init__(self, venv: VecEnv, least_seconds: Mapping[str, float]) -> None:
        super().__init__(venv)
        self._least = least_seconds
        self.actions: list[npt.NDArray[np.int16]] = []
        self._staged = isinstance(venv.get_attr("bank")[0], Stages)
        self._begin()
        self._tally = self._new_tally()

    def take_figures(self) -> Figures:
        """The figures since the last call."""
        figures, self._tally = self._tally.figures(), self._new_tally()
        return figures

    def reset(self) -> npt.NDArray[np.float32]:
        """Begin texts, and forget the actions."""
        observations: npt.NDArray[np.float32] = self.venv.reset()
        self.actions = []
        self._begin()
        return observations

    def step_async(self, actions: npt.NDArray[np.int64]) -> None:
        """Note the actions, and take them."""
        self.actions.append(actions.astype(np.int16))
        self.venv.step_async(actions)

    def step_wait(self) -> StepResult:
        """What the environments give back."""
        result: StepResult = self.venv.step_wait()
        dones, infos = result[2:]
        actions = self.actions[-1]
        steps = (actions != DEEPER) | (not self._staged)
        goes_on = steps & (self._last != _NONE)
        self._tally.add_choices(actions, int((goes_on & (actions != self._last)).sum()), int(goes_on.sum()))
        self._steps += steps
        self._last[steps] = actions[steps]
        for i in np.flatnonzero(dones).tolist():
            info = infos[i]
            self._tally.add_text(
                info["prompt_id"], info["total_tokens"], int(self._steps[i]), info["total_seconds"]
            )
        self._steps[dones], self._last[dones] = 0, _NONE
        return result

    def _begin(self) -> None:
        """All texts are at their beginnings: none has a step yet, hence no last tree."""
        self._steps: npt.NDArray[np.int64] = np.zeros(self.num_envs, dtype=np.int64)
        self._last: npt.NDArray[np.int64] = np.full(self.num_envs, _NONE)

    def _new_tally(self) -> Tally:
        return Tally(int(self.action_space.n), self._least)
