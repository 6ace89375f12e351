"""One episode of one policy, with every step on record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from policies.base import Memory, Predictor, SchedulingEnv

Result = TypeVar("Result")

_FINER_PARTS = ("accept_seconds", "commit_seconds")


@dataclass(frozen=True)
class StepRecord:
    """One decode step, with the decisions to draft that a staged environment takes before it.

    Attributes:
        action: Index of the tree in the bank, or the staged action that verified.
        tree: Its name.
        accept_length: Accepted drafts.
        tokens: Tokens emitted.
        seconds: Time of the step, without the policy's; that of the next observation is part of it when the
            policy reads observations.
        draft_seconds: Part of it spent drafting.
        verify_seconds: Part of it spent verifying.
        policy_seconds: Time of the policy's ``predict`` before the step.
        reward: The environment's reward.
        accept_seconds: Part of ``seconds`` spent on the acceptance rule, where the environment tells.
        commit_seconds: Part of it spent keeping what was accepted, where it tells.
        feature_seconds: Part of it spent on the next observation, where it tells; 0 for a policy that reads
            none.
        deeper: Decisions to draft another depth before the action; 0 with a bank. Times and rewards are sums
            over all decisions.
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
    accept_seconds: float = 0.0
    commit_seconds: float = 0.0
    feature_seconds: float = 0.0
    deeper: int = 0

    @property
    def decisions(self) -> tuple[int, ...]:
        """All actions of the step, in order; to draft another depth is action 0."""
        return (*(0,) * self.deeper, self.action)


_SUMMED = tuple(f.name for f in dataclasses.fields(StepRecord) if f.type == "float")


def decode_steps(decisions: Iterable[StepRecord], names: Sequence[str]) -> tuple[StepRecord, ...]:
    """The decode steps that decisions come to.

    A decision without a tree drafted another depth and is part of the step that follows; only an error ends a
    text before that.

    Args:
        decisions: One record each.
        names: Name of the tree of each action. An action that was not legal becomes that of the tree that was
            used instead of it.
    """
    steps: list[StepRecord] = []
    drafting: list[StepRecord] = []
    for own in decisions:
        drafting.append(own)
        if own.tree:
            steps.append(_step(drafting, names))
            drafting = []
    return (*steps, *([_step(drafting, names)] if drafting else []))


def _step(decisions: Sequence[StepRecord], names: Sequence[str]) -> StepRecord:
    last = decisions[-1]
    if last.tree in names and names[last.action] != last.tree:
        last = dataclasses.replace(last, action=names.index(last.tree))
    if len(decisions) == 1:
        return last
    sums = {name: sum(getattr(own, name) for own in decisions) for name in _SUMMED}
    return dataclasses.replace(last, deeper=len(decisions) - 1, **sums)


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

    def unobserved(self) -> Episode:
        """The same without the seconds that making observations took, which a replay does not count."""
        steps = (
            dataclasses.replace(step, seconds=step.seconds - step.feature_seconds, feature_seconds=0.0)
            for step in self.steps
        )
        return dataclasses.replace(self, steps=tuple(steps))


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
    return run_whole(stepwise_episode(env, policy, prompt_id, seed))


def run_whole(episode: Generator[None, None, Result]) -> Result:
    """The result of :func:`stepwise_episode`, or of a generator around it, without a pause."""
    while True:
        try:
            next(episode)
        except StopIteration as end:
            return cast("Result", end.value)


def stepwise_episode(
    env: SchedulingEnv, policy: Predictor, prompt_id: str, seed: int
) -> Generator[None, None, Episode]:
    """:func:`run_episode` that can be left after each decision and gone on with later.

    Yields:
        ``None`` before each decision.

    Returns:
        The record of the episode.
    """
    observes = getattr(policy, "observes", True)
    observation, info = env.reset(seed=seed, options={"prompt_id": prompt_id})
    prefill_seconds = info["prefill_seconds"]
    decisions: list[StepRecord] = []
    state: Memory | None = None
    done = False
    while not done:
        yield
        starts = np.array([not decisions])
        began = time.perf_counter()
        actions, state = policy.predict(observation, state=state, episode_start=starts, deterministic=True)
        policy_seconds = time.perf_counter() - began
        action = int(np.asarray(actions).item())
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        features = info.get("feature_seconds", 0.0)
        decisions.append(
            StepRecord(
                action=action,
                tree=info["tree"],
                accept_length=info["accept_length"],
                tokens=info["tokens"],
                seconds=info["seconds"] if observes else info["seconds"] - features,
                draft_seconds=info["draft_seconds"],
                verify_seconds=info["verify_seconds"],
                policy_seconds=policy_seconds,
                reward=float(reward),
                feature_seconds=features if observes else 0.0,
                **{part: info.get(part, 0.0) for part in _FINER_PARTS},
            )
        )
    unwrapped: Any = env.unwrapped
    steps = decode_steps(decisions, unwrapped.bank.names)
    return Episode(info["prompt_id"], steps, prefill_seconds, info["finish_reason"], info["text"])
