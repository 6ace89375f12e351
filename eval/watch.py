"""An episode with its steps' tokens and scores, which a record of times and trees lacks."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import TransformObservation

from entmtp_env.decoding.node_table import BuiltTree
from entmtp_env.text_pieces import text_pieces
from policies import Episode, Predictor, SchedulingEnv, StepRecord
from policies.rollout import run_whole, stepwise_episode

SCORES = ("base_top1", "base_entropy", "best_path_value", "deep_path_value", "expected_accept")
"""Features that schedulers take as a score; those that an environment observes are kept."""

_DIGITS = 5


@dataclass(frozen=True)
class StepDetail:
    """What a step wrote, and the scores before it.

    Attributes:
        token_ids: The tokens; empty when the environment does not tell.
        text: What they add to the text; empty when the environment does not tell.
        scores: Value by name of :data:`SCORES`, to five digits.
        parents: The tree that a staged step built: the parent of each node, which counts from 1 behind the
            root, 0; empty with a bank, whose trees are known by name.
    """

    token_ids: tuple[int, ...] = ()
    text: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    parents: tuple[int, ...] = ()


def watch_episode(
    env: SchedulingEnv, policy: Predictor, prompt_id: str, seed: int
) -> tuple[Episode, list[StepDetail]]:
    """Generate one text as :func:`policies.run_episode` does, and keep the details of its steps.

    Nothing is done within the times that the episode records.

    Args:
        env: A scheduling environment; one with a ``decoder`` and an ``engine``, as the live one has, tells
            tokens and texts, one whose decoder builds trees tells these, too.
        policy: Any predictor.
        prompt_id: The prompt.
        seed: Seed of the reset.

    Returns:
        The episode, and one detail a step; the scores are those before its last decision.
    """
    return run_whole(stepwise_watch(env, policy, prompt_id, seed))


def stepwise_watch(
    env: SchedulingEnv, policy: Predictor, prompt_id: str, seed: int
) -> Generator[None, None, tuple[Episode, list[StepDetail]]]:
    """:func:`watch_episode` that pauses as :func:`~policies.rollout.stepwise_episode` does."""
    unwrapped: Any = env.unwrapped
    observations: list[npt.NDArray[np.float32]] = []
    trees: list[BuiltTree | None] = []

    def keep(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        observations.append(observation)
        trees.append(getattr(getattr(unwrapped, "decoder", None), "built", None))
        return observation

    watched: SchedulingEnv = TransformObservation(env, keep, None)
    episode = yield from stepwise_episode(watched, policy, prompt_id, seed)
    # The first observation is that of the reset.
    after = list(accumulate(len(step.decisions) for step in episode.steps))
    names = list(unwrapped.feature_names)
    observed = [(name, names.index(name)) for name in SCORES if name in names]
    scores = [
        {name: round(float(observations[i - 1][column]), _DIGITS) for name, column in observed} for i in after
    ]
    if not hasattr(unwrapped, "decoder"):
        return episode, [StepDetail(scores=own) for own in scores]
    ends = list(accumulate((step.tokens for step in episode.steps), initial=0))
    tokens = list(unwrapped.decoder.tokens)
    ids = [tuple(tokens[begin:end]) for begin, end in pairwise(ends)]
    pieces = text_pieces(unwrapped.engine.decode, ids, episode.text)
    built = [() if (tree := trees[i]) is None else tuple(tree.parents[1:].tolist()) for i in after]
    return episode, [StepDetail(*own) for own in zip(ids, pieces, scores, built, strict=True)]


def nodes_per_depth(step: StepRecord, detail: StepDetail) -> list[int]:
    """Verified nodes of each depth that a staged step drafted; empty with a bank."""
    depths = [0]
    for parent in detail.parents:
        depths.append(depths[parent] + 1)
    return [depths.count(depth) for depth in range(1, max(step.deeper, *depths) + 1)]
