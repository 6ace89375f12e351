"""Calibration on recorded texts: many policies at once, in lock-step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from entmtp_env.progress import progress_bar
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.lockstep import LockstepReplay
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from train.trial import Trial

_ENVIRONMENTS = 2048
"""About how many go in lock-step: beyond, they are no faster."""


class ReplayBench:
    """The texts of recordings, several copies of each, so that several policies run side by side.

    Args:
        recordings: Recordings, pooled.
        costs: Seconds of a step.
        make: Makes the environments.
        **settings: Their further settings.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, or recordings, costs and bank do not fit together.
    """

    def __init__(
        self,
        recordings: Sequence[str],
        costs: str,
        make: Callable[..., LockstepReplay] = ReplayVectorEnv,
        **settings: Any,
    ) -> None:
        self._recordings, self._costs = tuple(recordings), load_costs(costs)
        self._texts = len(load_recording(self._recordings).texts)
        self._copies = max(1, _ENVIRONMENTS // self._texts)
        self._envs = make(self._copies * self._texts, recording=self._recordings, costs=costs, **settings)

    @property
    def env(self) -> SchedulingEnv:
        """What policies are built for."""
        # Policies read the bank and the feature names, and a vector environment has both.
        return cast(SchedulingEnv, self._envs)

    @property
    def record(self) -> dict[str, Any]:
        """Recordings, prompts and costs, and the manifest of the environment."""
        return {
            "recordings": self._recordings,
            "num_prompts": self._texts,
            "prompt_ids": [text.prompt_id for text in self._envs.prompts],
            "max_new_tokens": self._envs.max_new_tokens,
            "costs": {
                "name": self._costs.name,
                "fingerprint": getattr(self._costs, "fingerprint", None),
                **self._costs.manifest,
            },
            "environment": self._envs.manifest,
        }

    def warm_up(self) -> None:
        """Nothing: a replay has no first-use costs."""

    def run(self, policies: Sequence[SchedulerPolicy], task: str, scores: Sequence[str] = ()) -> list[Trial]:
        """Run every policy on every text; the policies' own time does not count.

        Args:
            policies: What to run.
            task: Title of the progress bar.
            scores: Features to note at every decision.
        """
        trials: list[Trial] = []
        with progress_bar() as bar:
            progress = bar.add_task(task, total=len(policies))
            for begin in range(0, len(policies), self._copies):
                own = policies[begin : begin + self._copies]
                trials += self._side_by_side(own, scores)
                bar.advance(progress, len(own))
        return trials

    def _side_by_side(self, policies: Sequence[SchedulerPolicy], scores: Sequence[str]) -> list[Trial]:
        """Run at most as many policies as there are copies; copies without one are of no account.

        Policies are told where texts begin as in :func:`policies.lockstep.replay`.
        """
        envs, count = self._envs, self._envs.num_envs
        blocks = [slice(i * self._texts, (i + 1) * self._texts) for i in range(len(policies))]
        used = np.arange(count) < len(policies) * self._texts
        ids = [text.prompt_id for text in envs.prompts] * self._copies
        observations, _ = envs.reset(seed=0, options={"prompt_id": ids})
        columns = [envs.feature_names.index(score) for score in scores]
        states: list[Memory | None] = [None] * len(policies)
        actions = np.zeros(count, dtype=np.int64)
        tokens, steps, seconds = np.zeros((3, count))
        running, starts = used, envs.episode_start
        others = np.zeros_like(starts)
        noted = []
        while running.any():
            noted.append(np.where(running, observations[:, columns].T, np.nan))
            for i, (policy, block) in enumerate(zip(policies, blocks, strict=True)):
                actions[block], states[i] = policy.predict(observations[block], states[i], starts[block])
            observations, _, terminated, truncated, info = envs.step(actions)
            starts = others = others | envs.episode_start
            steps += running & (info["tree"] != "")
            tokens += running * info["tokens"]
            seconds += running * info["seconds"]
            running = running & ~(terminated | truncated)
        values = np.stack(noted)
        return [
            Trial(
                policy=policy,
                tokens=int(tokens[block].sum()),
                steps=int(steps[block].sum()),
                seconds=float(seconds[block].sum()),
                scores={
                    score: own[~np.isnan(own)]
                    for score, own in zip(scores, np.moveaxis(values[..., block], 1, 0), strict=True)
                },
            )
            for policy, block in zip(policies, blocks, strict=True)
        ]
