import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import entmtp_env  # noqa: F401
from entmtp_env.decoding.prefix_layer import PrefixLayer
from policies import make_policy, run_episode

ID = "EntMTP/PromptLookup-v0"


@pytest.fixture
def make(tiny_files):
    def build(**overrides):
        return gymnasium.make(ID, **(tiny_files.kwargs | {"max_draft": 4} | overrides))

    return build


def test_checkers_find_nothing(make):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(render_mode="ansi").unwrapped)
        sb3.check_env(make())


@pytest.mark.parametrize("acceptance", ["greedy", "sample:temperature=0.5"])
def test_the_text_is_that_of_the_live_environment(make, tiny_files, acceptance):
    env = make(acceptance=acceptance)
    live = gymnasium.make("EntMTP/Live-v0", **tiny_files.kwargs, acceptance=acceptance)
    policies = [(env, make_policy("prompt-lookup", env)), (env, make_policy("random", env))]
    accepted = 0
    for seed, prompt in enumerate(("t0", "t3", "t5")):
        expected = run_episode(live, make_policy("autoregressive", live), prompt, seed)
        for own, policy in policies:
            episode = run_episode(own, policy, prompt, seed)
            assert (episode.text, episode.finish_reason) == (expected.text, expected.finish_reason)
            assert episode.tokens == expected.tokens
            accepted += episode.tokens - len(episode.steps)
    assert accepted > 0


def test_heads_are_not_run(make, monkeypatch):
    env = make()
    env.reset(seed=0)

    def run(*_):
        raise AssertionError("the prefix layer ran")

    monkeypatch.setattr(PrefixLayer, "forward", run)
    env.unwrapped.warm_up()
    env.reset(seed=0)
    done = False
    while not done:
        _, _, terminated, truncated, _ = env.step(4)
        done = terminated or truncated


@pytest.mark.parametrize("prompt", ["t0", "t5"])
def test_every_chain_is_warmed_up(make, monkeypatch, prompt):
    """Also with a prompt of one token, in which nothing can be looked up."""
    env, verified = make(max_new_tokens=200).unwrapped, []
    verify = env.decoder._verify
    monkeypatch.setattr(
        env.decoder, "_verify", lambda tree, *rest: verified.append(tree) or verify(tree, *rest)
    )
    env.warm_up(prompt)
    assert {len(tree) for tree in verified} == {0, 1, 2, 3, 4}


def test_actions_are_chains_and_heads_are_not_observed(make):
    env = make().unwrapped
    assert env.bank.names == ("autoregressive", "chain-1", "chain-2", "chain-3", "chain-4")
    assert env.action_space.n == 5
    assert not any(name.startswith(("path_value", "head_entropy")) for name in env.feature_names)
    assert {"base_top1", "accept_last"} <= set(env.feature_names)
    assert make(features="base").unwrapped.feature_names == ("base_top1", "base_entropy")
    observation, info = env.reset(seed=0)
    assert observation.shape == (len(env.feature_names),)
    assert info["tree"] == ""
    assert env.step(np.int64(3))[4]["tree"] == "chain-3"


def test_results_name_what_they_depend_on(make):
    one, other = make().unwrapped.manifest, make(max_draft=5, max_ngram=2).unwrapped.manifest
    assert (one["bank"], one["max_ngram"]) == ("prompt-lookup-4", 3)
    assert (other["bank"], other["max_ngram"]) == ("prompt-lookup-5", 2)
    assert one["bank_fingerprint"] != other["bank_fingerprint"]


@pytest.mark.parametrize("setting", [{"max_draft": 0}, {"max_ngram": 0}])
def test_a_draft_has_a_token(make, setting):
    with pytest.raises(ValueError, match="max_draft and max_ngram must be at least 1"):
        make(**setting)
