"""Calibration on the live decoder: policies take turns, prompt by prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from entmtp_env.progress import progress_bar
from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.rollout import Episode, run_episode
from train.trial import Trial


@dataclass(frozen=True)
class LiveBench:
    """A live environment and the prompts to run on it.

    Attributes:
        env: The environment.
        prompts: Name of the prompt set.
        prompt_ids: The prompts to run.
        seed: Seed of every episode.
        max_new_tokens: Token cap of each text.
    """

    env: SchedulingEnv
    prompts: str
    prompt_ids: Sequence[str]
    seed: int
    max_new_tokens: int

    @property
    def record(self) -> dict[str, Any]:
        """Prompts, seed, and the manifest of the environment."""
        unwrapped: Any = self.env.unwrapped
        return {
            "prompts": self.prompts,
            "num_prompts": len(self.prompt_ids),
            "prompt_ids": self.prompt_ids,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "environment": dict(unwrapped.manifest),
        }

    def warm_up(self) -> None:
        """Draft and verify with every tree once."""
        unwrapped: Any = self.env.unwrapped
        with Console(stderr=True).status("warming up every tree"):
            unwrapped.warm_up()

    def run(self, policies: Sequence[SchedulerPolicy], task: str, scores: Sequence[str] = ()) -> list[Trial]:
        """Run every policy on every prompt, prompt by prompt, so that drift of the machine hits all alike.

        Args:
            policies: What to run.
            task: Title of the progress bar.
            scores: Features to note at every decision.

        Raises:
            RuntimeError: When a step fails, as on a device out of memory.
        """
        tokens = len(policies) * len(self.prompt_ids) * self.max_new_tokens
        print(
            f"{len(policies)} {task} on {len(self.prompt_ids)} prompts: up to {tokens} tokens",
            file=sys.stderr,
        )
        watched = [_Watched(policy) for policy in policies]
        with progress_bar() as bar:
            episodes = bar.add_task(task, total=len(watched) * len(self.prompt_ids))
            for prompt_id in self.prompt_ids:
                for own in watched:
                    episode = run_episode(self.env, own, prompt_id, self.seed)
                    if episode.finish_reason.startswith("error"):
                        raise RuntimeError(f"{own.policy.spec} on {prompt_id}: {episode.finish_reason}")
                    own.episodes.append(episode)
                    bar.advance(episodes)
        return [own.trial(scores) for own in watched]


@dataclass
class _Watched:
    """A predictor that notes what its policy sees and what comes of it."""

    policy: SchedulerPolicy
    episodes: list[Episode] = field(default_factory=list)
    observations: list[npt.NDArray[Any]] = field(default_factory=list)

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], Memory | None]:
        self.observations.append(observation)
        return self.policy.predict(observation, state, episode_start, deterministic)

    def trial(self, scores: Sequence[str]) -> Trial:
        observations = np.stack(self.observations)
        return Trial(
            policy=self.policy,
            tokens=sum(episode.tokens for episode in self.episodes),
            steps=sum(len(episode.steps) for episode in self.episodes),
            seconds=sum(episode.seconds + episode.policy_seconds for episode in self.episodes),
            scores={score: observations[:, self.policy.feature(score)] for score in scores},
        )
