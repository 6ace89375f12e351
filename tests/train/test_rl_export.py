import contextlib
import sys

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.vec_env import VecNormalize

from entmtp_env.replay.sb3 import ReplaySB3VecEnv
from eval.environment import enter_policies
from policies import run_episode
from policies.learned import Learned
from tests.recordings import BANK, random_recording, saved_settings
from train.rl_export import to_learned
from train.rl_replays import Replays


@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN])
def test_the_exported_policy_acts_as_the_model(tmp_path, algorithm):
    settings = saved_settings(tmp_path, random_recording(np.random.default_rng(0)))
    env = VecNormalize(ReplaySB3VecEnv(8, **settings), clip_obs=1.5)
    model = algorithm("MlpPolicy", env, policy_kwargs={"net_arch": [32, 16]}, seed=0, device="cpu")
    with torch.no_grad():
        # An untrained network would choose one tree for nearly everything.
        for parameter in model.policy.parameters():
            parameter.normal_()
    env.seed(0)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        env.step(rng.integers(0, 3, size=8))
    replays = Replays([settings.pop("recording")], settings)
    policy = to_learned(model, env, replays.envs)
    policy.save(tmp_path / "policy.npz")
    # What happens to the model afterwards is no concern of the policy.
    env.training = False
    observations = rng.random((5_000, len(replays.envs.feature_names)), dtype=np.float32)
    expected, _ = model.predict(env.normalize_obs(observations), deterministic=True)
    assert min(np.bincount(expected, minlength=len(BANK))) > 100
    loaded = Learned.load(tmp_path / "policy.npz", replays.env)
    for exported in (policy, loaded):
        assert exported.kind == ("q" if algorithm is DQN else "logits")
        # But for ties within rounding.
        assert (exported.predict(observations)[0] == expected).mean() >= 0.999


FACTORY = """
from stable_baselines3 import PPO


def trained(env, path):
    return PPO.load(path, device="cpu")
"""


@pytest.mark.parametrize("normalization", ["none", "of rewards"])
def test_a_model_trained_elsewhere_is_evaluated_as_it_is_and_exported(
    tmp_path, monkeypatch, tiny_files, normalization
):
    live = tiny_files.kwargs
    env = gymnasium.make("EntMTP/Live-v0", **live)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        # An untrained network would choose one tree for nearly everything.
        for parameter in model.policy.parameters():
            parameter.normal_()
    model.save(tmp_path / "ppo.zip")
    around = None if normalization == "none" else VecNormalize(model.get_env(), norm_obs=False)
    to_learned(model, around, env).save(tmp_path / "exported.npz")

    (tmp_path / "of_my_own.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    rows = {"own": "of_my_own:trained,path=ppo.zip", "exported": "learned@exported.npz"}
    settings = {**live, "env_id": "EntMTP/Live-v0", "probe": "none", "bank": "default"}
    settings |= {"stages": "default", "acceptance": "greedy", "features": "all"}
    with contextlib.ExitStack() as stack:
        entrants = enter_policies(settings, tiny_files.prompts, rows, stack)
        assert entrants["own"].env is entrants["exported"].env
        assert entrants["own"].fingerprint
        episodes = {
            name: run_episode(entrant.env, entrant.policy, "t4", seed=0) for name, entrant in entrants.items()
        }
    del sys.modules["of_my_own"]
    actions = {name: [step.action for step in episode.steps] for name, episode in episodes.items()}
    assert actions["own"] == actions["exported"]
    observations = np.random.default_rng(0).random((5_000, *env.observation_space.shape), dtype=np.float32)
    own, exported = (entrants[name].policy.predict(observations, deterministic=True)[0] for name in rows)
    assert len(np.unique(own)) > 5
    # But for ties within rounding.
    assert (own == exported).mean() >= 0.999


def test_a_policy_does_not_learn_on(tmp_path):
    settings = saved_settings(tmp_path, random_recording(np.random.default_rng(0)))
    env = VecNormalize(ReplaySB3VecEnv(4, **settings))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=16, seed=0, device="cpu")
    replays = Replays([settings.pop("recording")], settings)
    policy = to_learned(model, env, replays.envs)
    before = {name: array.copy() for name, array in policy.network.to_arrays().items()}
    model.learn(64)
    for name, array in policy.network.to_arrays().items():
        np.testing.assert_array_equal(array, before[name])
