"""Replays whose best trees are known, for tests of policies that learn from them."""

from dataclasses import replace

import gymnasium
import numpy as np

import entmtp_env  # noqa: F401
from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE
from policies import run_episode
from tests.recordings import random_recording, saved_settings

NOTHING, ONE, ALL = (NOT_DRAFTABLE,) * 3, (0, NOT_DRAFTABLE, NOT_DRAFTABLE), (0, 0, 0)
"""Ranks at which a chain has 0, 1 or 3 accepted drafts."""


def replay_of(folder, *ranks, costs):
    """A replay each of whose positions has one of some rank tuples, which ``base_top1`` tells."""
    drawn = random_recording(np.random.default_rng(0), texts=20, longest=60, cap=60)
    states = np.random.default_rng(1).integers(len(ranks), size=len(drawn.tokens))
    recording = replace(
        drawn,
        ranks=np.where(drawn.ranks == NO_TOKEN, NO_TOKEN, np.array(ranks)[states]).astype(np.int32),
        base_top1=(states / max(len(ranks) - 1, 1)).astype(np.float32),
    )
    return gymnasium.make("EntMTP/Replay-v0", **saved_settings(folder, recording) | {"costs": costs})


def play(env, policy, rounds=1):
    """The steps of every text, in ``rounds`` rounds, by text."""
    prompts = env.unwrapped.prompts
    return [run_episode(env, policy, text.prompt_id, seed=0).steps for _ in range(rounds) for text in prompts]


def rate(episodes):
    """Their throughput."""
    steps = [step for steps in episodes for step in steps]
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)
