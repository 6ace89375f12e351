import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from policies import run_episode
from policies.learned import Learned
from policies.network import Network
from policies.staged_learned import StagedLearned
from tests.staged import STAGES, staged_settings


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    settings = staged_settings(tmp_path_factory.mktemp("staged"), texts=4, longest=20, cap=20)
    return gymnasium.make("EntMTP/StagedReplay-v0", **settings)


def random_network(env, seed):
    rng, inputs = np.random.default_rng(seed), len(env.unwrapped.feature_names)
    return Network(
        (rng.normal(size=(inputs, 8)), rng.normal(size=(8, len(STAGES)))),
        (rng.normal(size=8), rng.normal(size=len(STAGES))),
        np.zeros(inputs),
        np.ones(inputs),
    )


@pytest.mark.parametrize("seed", range(4))
def test_it_takes_the_legal_action_that_the_network_likes_best(env, seed):
    network = random_network(env, seed)
    policy = StagedLearned(env, network)
    rng, stages, unwrapped = np.random.default_rng(seed), set(), env.unwrapped
    observation, info = env.reset(seed=seed)
    for _ in range(300):
        legal = np.flatnonzero(info["action_mask"])
        best = max(legal, key=lambda action: network(observation[None])[0, action])
        action, state = policy.predict(observation)
        assert (action, state) == (best, None)
        stages.add(unwrapped._depth)
        observation, _, terminated, truncated, info = env.step(rng.choice(legal))
        if terminated or truncated:
            observation, info = env.reset()
    assert len(stages) == STAGES.depth + 1


def test_a_file_brings_back_the_same(env, tmp_path):
    policy = StagedLearned(env, random_network(env, 1))
    policy.save(tmp_path / "p.npz", {"how": "test"})
    again = StagedLearned.load(tmp_path / "p.npz", env)
    assert again.spec == f"staged-learned@{tmp_path / 'p.npz'}"
    runs = [[step.action for step in run_episode(env, one, "t1", seed=0).steps] for one in (policy, again)]
    assert runs[0] == runs[1]
    with pytest.raises(ValueError, match="the policy file is for 'staged-learned', not 'learned'"):
        Learned.load(tmp_path / "p.npz", env)


def test_other_stages_other_features_and_banks_are_refused(env, tmp_path, fake_env):
    StagedLearned(env, random_network(env, 1)).save(tmp_path / "p.npz")
    settings = staged_settings(tmp_path, stages=STAGES)
    other = gymnasium.make("EntMTP/StagedReplay-v0", features="base", **settings)
    with pytest.raises(ValueError, match="belongs to the features"):
        StagedLearned.load(tmp_path / "p.npz", other)
    with pytest.raises(ValueError, match=r"7 outputs, the environment \d+ features and 7"):
        StagedLearned(other, random_network(env, 1))
    with pytest.raises(ValueError, match="needs a staged environment"):
        StagedLearned(fake_env(), random_network(env, 1))
