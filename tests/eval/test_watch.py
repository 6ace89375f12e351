import functools
from collections import Counter

import gymnasium
import numpy as np
import pytest

from eval.watch import SCORES, nodes_per_depth, watch_episode
from policies import make_policy
from tests.fake_env import FakeEnv


@pytest.mark.parametrize("features", ["all", "base"])
def test_details_are_those_of_stepping_the_environment(tiny_files, features):
    settings = tiny_files.kwargs | {"features": features}
    env = gymnasium.make("EntMTP/Live-v0", **settings)
    episode, details = watch_episode(env, make_policy("static:tree-4x2", env), "t3", 5)
    assert len(details) == len(episode.steps) > 1
    again = gymnasium.make("EntMTP/Live-v0", **settings)
    observation, _ = again.reset(seed=5, options={"prompt_id": "t3"})
    names, tokens = list(again.unwrapped.feature_names), again.unwrapped.decoder.tokens
    observed = [name for name in SCORES if name in names]
    assert len(observed) == (len(SCORES) if features == "all" else 2)
    for step, detail in zip(episode.steps, details, strict=True):
        scores = {name: observation[names.index(name)] for name in observed}
        assert detail.scores == pytest.approx(scores, abs=1e-5)
        before = len(tokens)
        observation, *_ = again.step(step.action)
        assert list(detail.token_ids) == tokens[before:]
    assert "".join(detail.text for detail in details) == episode.text


@pytest.mark.parametrize("seed", range(3))
def test_details_of_staged_steps_are_those_of_stepping_the_environment(tiny_files, seed):
    make = functools.partial(gymnasium.make, "EntMTP/Staged-v0", **tiny_files.kwargs)
    env, again = make(), make()
    policy = Decisions(np.random.default_rng(seed).integers(0, 9, 200).clip(3) - 3)
    episode, details = watch_episode(env, policy, "t3", 5)
    assert len(details) == len(episode.steps) > 1
    observation, _ = again.reset(seed=5, options={"prompt_id": "t3"})
    names, decoder = list(again.unwrapped.feature_names), again.unwrapped.decoder
    for step, detail in zip(episode.steps, details, strict=True):
        for action in step.decisions:
            before, old = len(decoder.tokens), observation
            observation, *_, info = again.step(action)
        assert info["tree"] == step.tree
        assert detail.scores == pytest.approx(
            {name: old[names.index(name)] for name in ("base_top1", "base_entropy")}, abs=1e-5
        )
        assert list(detail.token_ids) == decoder.tokens[before:]
        paths = decoder.built.draft_tree("built").nodes
        depths = Counter(map(len, paths))
        expected = [depths[depth] for depth in range(1, max(step.deeper, *depths, 0) + 1)]
        assert nodes_per_depth(step, detail) == expected
        assert paths_of(detail.parents) == set(paths)
    assert "".join(detail.text for detail in details) == episode.text
    assert max(step.deeper for step in episode.steps) > 1


class Decisions:
    """Given actions in turn."""

    def __init__(self, actions):
        self.actions = iter(actions)

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return next(self.actions), None


def paths_of(parents):
    """Child ranks along the way to each node."""
    paths = [()]
    for i, parent in enumerate(parents):
        paths.append((*paths[parent], parents[:i].count(parent)))
    return set(paths[1:])


def test_an_environment_without_a_decoder_tells_its_scores_only():
    env = FakeEnv()
    episode, details = watch_episode(env, make_policy("random", env), "p", 0)
    assert len(details) == len(episode.steps)
    assert {detail.token_ids for detail in details} == {()}
    observation, _ = env.reset(seed=0, options={"prompt_id": "p"})
    assert details[0].scores["base_top1"] == pytest.approx(float(observation[0]), abs=1e-5)


def test_scores_are_plain_numbers():
    env = FakeEnv()
    _, details = watch_episode(env, make_policy("autoregressive", env), "p", 0)
    assert not any(isinstance(value, np.generic) for detail in details for value in detail.scores.values())
