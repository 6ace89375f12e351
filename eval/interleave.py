"""Run policies side by side, text by text or step by step, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from entmtp_env.prompts import Prompt
from eval.watch import StepDetail, stepwise_watch
from policies import Episode, Predictor, SchedulingEnv

Turns = Literal["text", "step"]
"""When a row makes way for the next: after a text, or after every step. A machine that drifts by percents
from text to text hardly does from step to step, but then every row needs an environment of its own."""


class EvaluationError(RuntimeError):
    """The engine did what no comparison can be built on; the message says with which prompt and policy."""


@dataclass(frozen=True)
class Run:
    """One episode of a comparison.

    Attributes:
        policy: Name of the row: the spec of its policy.
        seed: Seed of the reset.
        episode: What happened.
        details: What each step wrote and what the policy could see before it; empty when not watched.
    """

    policy: str
    seed: int
    episode: Episode
    details: Sequence[StepDetail] = ()


@dataclass(frozen=True)
class Entrant:
    """A row of a comparison.

    Attributes:
        env: The environment; rows may share one, or have models of their own.
        policy: The policy that schedules it.
        env_id: Gymnasium id that makes such an environment from the evaluation's settings, and behind it the
            settings that are its own, as in ``EntMTP/Live-v0 probe=first features=heads``; empty when it has
            a model of its own.
        fingerprint: Hash of what the policy was read from, see :func:`policies.registry.policy_fingerprint`.
    """

    env: SchedulingEnv
    policy: Predictor
    env_id: str = ""
    fingerprint: str = ""


def draw_prompts(prompts: Sequence[Prompt], limit: int, seed: int) -> dict[str, int]:
    """Choose prompts and give each its seed.

    Args:
        prompts: The set.
        limit: Prompts to keep, the first after a shuffle; 0 = all.
        seed: Seed of the shuffle, and of the first prompt; the others count up from it, so that two prompts
            never share their sampling noise.

    Returns:
        Seed by prompt id, in the order to run.
    """
    order = np.random.default_rng(seed).permutation(len(prompts))
    return {prompts[k].prompt_id: seed + i for i, k in enumerate(order[: limit or None])}


def warm_up(env: SchedulingEnv, policies: Mapping[str, Predictor], prompt_id: str) -> None:
    """Pay the first-use costs (kernels, allocations, imports) of every tree and policy, untimed."""
    unwrapped: Any = env.unwrapped
    unwrapped.warm_up(prompt_id)
    observation, _ = env.reset(seed=0, options={"prompt_id": prompt_id})
    for policy in policies.values():
        policy.predict(observation, state=None, episode_start=np.array([True]), deterministic=True)


def interleave(
    env: SchedulingEnv, policies: Mapping[str, Predictor], seeds: Mapping[str, int], seed: int
) -> Iterator[Run]:
    """:func:`interleave_entrants` for policies by spec that share an environment."""
    return interleave_entrants({name: Entrant(env, own) for name, own in policies.items()}, seeds, seed)


def interleave_entrants(
    entrants: Mapping[str, Entrant],
    seeds: Mapping[str, int],
    seed: int,
    done: Collection[tuple[str, str]] = (),
    turns: Turns = "text",
) -> Iterator[Run]:
    """Generate one text per prompt and row, all rows on a prompt before the next one.

    Args:
        entrants: The rows by name, such as the policy's spec.
        seeds: Seed by prompt id, the same for every row.
        seed: Seed of the order of the rows, shuffled anew for each prompt.
        done: Pairs of row and prompt id to leave out; the order of the others stays.
        turns: When a row makes way for the next.

    Yields:
        The runs, as they finish.

    Raises:
        ValueError: When rows that take turns after every step share an environment.
        EvaluationError: When an episode ends in an error, or on another prompt than asked for.
        RuntimeError: When the policy or the environment raised; it names both and is chained to the cause.
    """
    names = list(entrants)
    if turns == "step" and len({id(entrant.env) for entrant in entrants.values()}) < len(names):
        raise ValueError('with turns="step" no two rows may share an environment: give each its own')
    shuffle = np.random.default_rng(seed)
    for prompt_id, prompt_seed in seeds.items():
        order = [names[k] for k in shuffle.permutation(len(names))]
        left = [name for name in order if (name, prompt_id) not in done]
        for together in [left] if turns == "step" else [[name] for name in left]:
            yield from _take_turns({name: entrants[name] for name in together}, prompt_id, prompt_seed)


def _take_turns(entrants: Mapping[str, Entrant], prompt_id: str, seed: int) -> Iterator[Run]:
    """Write a text with each row, one step of every row after the other."""
    writing = {name: stepwise_watch(own.env, own.policy, prompt_id, seed) for name, own in entrants.items()}
    while writing:
        for name, steps in list(writing.items()):
            try:
                next(steps)
            except StopIteration as end:
                del writing[name]
                episode, details = end.value
                _check_episode(episode, name, prompt_id)
                yield Run(name, seed, episode, details)
            except Exception as error:
                raise RuntimeError(f"policy {name!r} failed on prompt {prompt_id!r}") from error


def _check_episode(episode: Episode, policy: str, prompt_id: str) -> None:
    if episode.finish_reason.startswith("error"):
        raise EvaluationError(
            f"policy {policy!r} on prompt {prompt_id!r} ended with {episode.finish_reason!r} after "
            f"{len(episode.steps)} steps; repair the cause, or leave that prompt out for all "
            "policies: an average over the other texts would favour this one or hurt it"
        )
    if episode.prompt_id != prompt_id:
        raise EvaluationError(
            f"asked for prompt {prompt_id!r}, the environment ran {episode.prompt_id!r} under "
            f'{policy!r}; its reset must obey options={{"prompt_id": ...}}'
        )
