"""One episode of one policy, with every step on record."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from policies.base import Memory, Predictor, SchedulingEnv


@dataclass(frozen=True)
class StepRecord:
    """One decode step.

    Attributes:
        action: Index of the tree in the bank.
        tree: Its name.
        accept_length: Accepted drafts.
        tokens: Tokens emitted.
        seconds: Time of the step, without the policy's.
        draft_seconds: Part of it spent drafting.
        verify_seconds: Part of it spent verifying.
        policy_seconds: Time of the policy's ``predict`` before the step.
        reward: The environment's reward.
    """

    action: int
    tree: str
    accept_length: int
    tokens: int
    seconds: float
    draft_seconds: float
    verify_seconds: float
    policy_seconds: float
    reward: float


@dataclass(frozen=True)
class Episode:
    """One generated text.

    Attributes:
        prompt_id: The prompt.
        steps: The decode steps, at least one.
        prefill_seconds: Time of the prompt's forward pass, in no step.
        finish_reason: Why the text ended, as in ``info``.
        text: The text.
    """

    prompt_id: str
    steps: tuple[StepRecord, ...]
    prefill_seconds: float
    finish_reason: str
    text: str

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(step.tokens for step in self.steps)

    @property
    def seconds(self) -> float:
        """Time of the decode steps, without prefill and policy."""
        return sum(step.seconds for step in self.steps)

    @property
    def policy_seconds(self) -> float:
        """Time spent in the policy."""
        return sum(step.policy_seconds for step in self.steps)

    @property
    def switches(self) -> int:
        """Steps whose tree differs from the one before."""
        return sum(a.action != b.action for a, b in zip(self.steps, self.steps[1:], strict=False))

    @property
    def tau(self) -> float:
        """Tokens per step, τ."""
        return self.tokens / len(self.steps)


def run_episode(env: SchedulingEnv, policy: Predictor, prompt_id: str, seed: int) -> Episode:
    """Generate one text under a policy.

    Args:
        env: A scheduling environment.
        policy: Any predictor; a Stable-Baselines3 model runs deterministically.
        prompt_id: The prompt.
        seed: Seed of the reset, which fixes the sampling.

    Returns:
        The record of the episode.
    """
    observation, info = env.reset(seed=seed, options={"prompt_id": prompt_id})
    prefill_seconds = info["prefill_seconds"]
    steps: list[StepRecord] = []
    state: Memory | None = None
    done = False
    while not done:
        starts = np.array([not steps])
        began = time.perf_counter()
        actions, state = policy.predict(observation, state=state, episode_start=starts, deterministic=True)
        policy_seconds = time.perf_counter() - began
        action = int(np.asarray(actions).item())
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        steps.append(
            StepRecord(
                action=action,
                tree=info["tree"],
                accept_length=info["accept_length"],
                tokens=info["tokens"],
                seconds=info["seconds"],
                draft_seconds=info["draft_seconds"],
                verify_seconds=info["verify_seconds"],
                policy_seconds=policy_seconds,
                reward=float(reward),
            )
        )
    return Episode(info["prompt_id"], tuple(steps), prefill_seconds, info["finish_reason"], info["text"])
