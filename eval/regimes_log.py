"""What a scheduler sees before every decode step with one tree, and what the step then accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import TransformObservation

from entmtp_env.features import Feature
from eval.interleave import interleave
from policies import SchedulingEnv, make_policy


@dataclass(frozen=True, eq=False)
class StepLog:
    """Decode steps of G generations, M steps in all.

    A text's first step, which has no history, and its last, which the end of the text cuts, are left out.

    Attributes:
        features: The F features.
        values: Their values at the decision before each step, float32 ``(M, F)``.
        accepted: Accepted drafts of that step, ``(M,)``; the paper's accept length is one more.
        generations: Number of the generation of each step, ``(M,)``.
        prompt_ids: Prompt of each generation.
        texts: Text of each generation.
    """

    features: tuple[Feature, ...]
    values: npt.NDArray[np.float32]
    accepted: npt.NDArray[np.int64]
    generations: npt.NDArray[np.int64]
    prompt_ids: tuple[str, ...]
    texts: tuple[str, ...]

    def lines(self, task: str) -> Iterator[str]:
        """A JSON object for each step, features by name, to five digits."""
        step, last = 0, -1
        for values, accepted, generation in zip(self.values, self.accepted, self.generations, strict=True):
            step, last = 1 if generation != last else step + 1, generation
            which = {"task": task, "prompt_id": self.prompt_ids[generation], "step": step}
            numbers = (float(f"{value:.5g}") for value in values)
            named = zip((feature.name for feature in self.features), numbers, strict=True)
            yield json.dumps(which | {"accept_length": int(accepted)} | dict(named)) + "\n"


def log_steps(
    env: SchedulingEnv, tree: str, seeds: Mapping[str, int], advance: Callable[[], None] = lambda: None
) -> StepLog:
    """Generate a text for each prompt, live or replayed, with one tree at every step.

    Args:
        env: The environment.
        tree: Name of a tree of its bank.
        seeds: Seed by prompt id.
        advance: Called after each text.

    Raises:
        ValueError: When there is no such tree, or no text has three steps.
        EvaluationError: When a text ends in an error.
    """
    unwrapped: Any = env.unwrapped
    seen: list[npt.NDArray[np.float32]] = []

    def keep(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        seen.append(observation)
        return observation

    watched: SchedulingEnv = TransformObservation(env, keep, None)
    policies = {tree: make_policy(f"static:{tree}", env)}
    values, accepted, generations, ids, texts = [], [], [], [], []
    for number, run in enumerate(interleave(watched, policies, seeds, seed=0)):
        kept = run.episode.steps[1:-1]
        values += seen[1 : 1 + len(kept)]
        accepted += [step.accept_length for step in kept]
        generations += [number] * len(kept)
        ids.append(run.episode.prompt_id)
        texts.append(run.episode.text)
        seen.clear()
        advance()
    if not values:
        raise ValueError(f"no text has three steps with {tree}; take longer texts or a smaller tree")
    return StepLog(
        unwrapped.feature_set.features,
        np.stack(values).astype(np.float32),
        np.array(accepted, dtype=np.int64),
        np.array(generations, dtype=np.int64),
        tuple(ids),
        tuple(texts),
    )
