"""Every text of a recording once under a policy, all in lock-step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.lockstep import LockstepReplay
from policies.base import Memory, Predictor
from policies.rollout import Episode, StepRecord, decode_steps

_PER_STEP = ("tree", "accept_length", "tokens", "seconds", "draft_seconds", "verify_seconds")


@dataclass(frozen=True)
class Replayed:
    """What a policy made of recorded texts.

    Attributes:
        episodes: One per text, in the order asked for; the policy's own time is in none of them.
        policy_seconds: Time of a decision, all texts' decisions of a step being made in one call.
    """

    episodes: tuple[Episode, ...]
    policy_seconds: float


def replay(envs: LockstepReplay, policy: Predictor, prompt_ids: Sequence[str]) -> Replayed:
    """Run one episode on each of some recorded texts.

    Args:
        envs: As many environments as texts, in an autoreset mode that needs no calls of ``reset``.
        policy: Any predictor; it sees the texts as a batch. Where one has ended another goes on that does not
            count, and at each of its decisions the policy is told that a text begins, so that it remembers
            nothing.
        prompt_ids: Which texts.

    Raises:
        ValueError: When a text is unknown, there is not an environment for each, or the policy chose what is
            no tree.
    """
    observations, info = envs.reset(seed=0, options={"prompt_id": list(prompt_ids)})
    prefill, reasons, replies = info["prefill_seconds"].tolist(), {}, {}
    steps: list[list[StepRecord]] = [[] for _ in prompt_ids]
    running, starts = np.ones(len(steps), dtype=np.bool_), envs.episode_start
    others = np.zeros_like(starts)
    state: Memory | None = None
    seconds, decisions = 0.0, 0
    while running.any():
        began = time.perf_counter()
        actions, state = policy.predict(observations, state=state, episode_start=starts, deterministic=True)
        seconds += time.perf_counter() - began
        decisions += len(steps)
        observations, rewards, terminated, truncated, info = envs.step(actions)
        starts = others = others | envs.episode_start
        columns = {key: info[key].tolist() for key in _PER_STEP}
        for i in np.flatnonzero(running).tolist():
            own: dict[str, Any] = {key: column[i] for key, column in columns.items()}
            steps[i].append(
                StepRecord(action=int(actions[i]), policy_seconds=0.0, reward=float(rewards[i]), **own)
            )
        for i in np.flatnonzero(running & (terminated | truncated)).tolist():
            reasons[i], replies[i] = str(info["finish_reason"][i]), str(info["text"][i])
        running &= ~(terminated | truncated)
    episodes = tuple(
        Episode(prompt_id, decode_steps(steps[i], envs.bank.names), prefill[i], reasons[i], replies[i])
        for i, prompt_id in enumerate(prompt_ids)
    )
    return Replayed(episodes, seconds / decisions)


class Script:
    """A predictor that repeats known schedules.

    Args:
        schedules: Trees by text, step by step; the first tree stands where a schedule is too short.
        observes: Whether the time of observations counts, as it does for a policy that reads them.
    """

    def __init__(self, schedules: Sequence[Sequence[int]], observes: bool = True) -> None:
        self.observes = observes
        self._actions = np.zeros((max(map(len, schedules)) + 1, len(schedules)), dtype=np.int64)
        for i, schedule in enumerate(schedules):
            self._actions[: len(schedule), i] = schedule

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], Memory | None]:
        """The next tree of each schedule, ``(texts,)``."""
        step = 0 if state is None else int(state[0][0])
        return self._actions[min(step, len(self._actions) - 1)], (np.array([step + 1]),)
