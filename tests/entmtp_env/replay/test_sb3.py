import copy
import pickle
import warnings

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from entmtp_env.decoding.stages import load_stages
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.staged_env import StagedReplayEnv
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies import make_policy
from policies.registry import BUILT_IN
from policies.shipped import shipped_policies
from tests.recordings import random_recording
from tests.staged import staged_settings

sb3 = pytest.importorskip("stable_baselines3")
vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
monitor = pytest.importorskip("stable_baselines3.common.monitor")
evaluation = pytest.importorskip("stable_baselines3.common.evaluation")

from entmtp_env.replay.sb3 import ReplaySB3VecEnv, StagedReplaySB3VecEnv  # noqa: E402 - only where there is SB3

FILES = [(name, bank) for name, bank in shipped_policies() if name in BUILT_IN]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(0), texts=5, depth=4, longest=12, cap=12)
    path = tmp_path_factory.mktemp("recordings") / "t.npz"
    recording.save(path)
    costs = "analytic:base=0.02,node=0.0005,depth=0.001"
    return {"recording": str(path), "costs": costs, "max_new_tokens": 8}


@pytest.fixture
def dummy(settings):
    return vec_env.DummyVecEnv([lambda: monitor.Monitor(ReplayEnv(**settings))] * 4)


def without_time(info):
    episode = {key: info["episode"][key] for key in ("r", "l")}
    return {key: value for key, value in info.items() if key != "terminal_observation"} | {"episode": episode}


def test_it_goes_through_what_single_environments_go_through(settings, dummy):
    env, rng = ReplaySB3VecEnv(4, **settings), np.random.default_rng(1)
    assert env.seed(7) == dummy.seed(7)
    observations = env.reset()
    np.testing.assert_array_equal(observations, dummy.reset())
    assert observations.flags.c_contiguous
    assert observations.dtype == np.float32
    assert env.reset_infos == dummy.reset_infos
    finished = set()
    for _ in range(120):
        actions = rng.integers(len(env.bank), size=4)
        (observations, rewards, dones, infos), expected = env.step(actions), dummy.step(actions)
        # Single environments compute in float64.
        np.testing.assert_allclose(observations, expected[0], rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(rewards, expected[1])
        np.testing.assert_array_equal(dones, expected[2])
        assert observations.flags.c_contiguous
        assert (observations.dtype, rewards.dtype, dones.dtype) == (np.float32, np.float32, np.bool_)
        assert env.reset_infos == dummy.reset_infos
        for done, info, other in zip(dones, infos, expected[3], strict=True):
            if not done:
                assert info == {}
                continue
            assert without_time(info) == without_time(other)
            assert {key: type(value) for key, value in info.items()} == {
                key: type(value) for key, value in other.items()
            }
            last, expected_last = info["terminal_observation"], other["terminal_observation"]
            np.testing.assert_allclose(last, expected_last, rtol=1e-6, atol=1e-7)
            assert info["episode"]["t"] >= 0
            finished.add(info["finish_reason"])
    assert finished == {"eos", "length"}


def test_options_pick_the_prompts(settings):
    env = ReplaySB3VecEnv(3, **settings)
    env.seed(0)
    env.reset()
    env.set_options([{"prompt_id": "t3"}, {"prompt_id": "t1"}, {"prompt_id": "t3"}])
    env.reset()
    assert [info["prompt_id"] for info in env.reset_infos] == ["t3", "t1", "t3"]
    env.set_options({"prompt": "t3"})
    with pytest.raises(ValueError, match="'prompt'"):
        env.reset()


def test_options_of_some_environments_leave_the_others_their_turn(settings, dummy):
    env = ReplaySB3VecEnv(4, **settings)
    for own in (env, dummy):
        own.seed(3)
        own.reset()
        own.set_options([{}, {"prompt_id": "t1"}, {}, {"prompt_id": "t3"}])
    for _ in range(7):
        np.testing.assert_allclose(env.reset(), dummy.reset(), rtol=1e-6, atol=1e-7)
        assert env.reset_infos == dummy.reset_infos


def test_attributes_are_those_of_every_environment(settings, dummy):
    env = ReplaySB3VecEnv(4, **settings)
    assert [bank.fingerprint for bank in env.get_attr("bank")] == [
        bank.fingerprint for bank in dummy.get_attr("bank")
    ]
    for name in ("feature_names", "observation_space", "action_space", "manifest", "render_mode"):
        assert env.get_attr(name) == dummy.get_attr(name)
    assert len(env.get_attr("bank", [0, 2])) == len(env.get_attr("bank", range(2))) == 2
    assert not env.has_attr("bink")
    assert env.env_is_wrapped(monitor.Monitor, indices=1) == [True]
    assert env.env_is_wrapped(vec_env.VecNormalize) == [False] * 4
    with pytest.raises(NotImplementedError, match="'reward'"):
        env.set_attr("reward", None)
    with pytest.raises(NotImplementedError, match="'warm_up'"):
        env.env_method("warm_up")
    env.close()


def test_step_needs_reset(settings):
    env = ReplaySB3VecEnv(2, **settings)
    with pytest.raises(ResetNeeded):
        env.step(np.zeros(2, dtype=np.int64))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike(settings, duplicate):
    env = ReplaySB3VecEnv(2, **settings)
    env.seed(3)
    env.reset()
    env.step(np.array([1, 2]))
    twin = duplicate(env)
    for _ in range(20):
        mine, other = env.step(np.array([0, 3])), twin.step(np.array([0, 3]))
        np.testing.assert_array_equal(mine[0], other[0])
        assert [info.get("prompt_id") for info in mine[3]] == [info.get("prompt_id") for info in other[3]]


def test_wrappers_of_stable_baselines_go_on_top(settings):
    plain = ReplaySB3VecEnv(4, **settings)
    normal = vec_env.VecNormalize(ReplaySB3VecEnv(4, **settings), norm_reward=False)
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        watched = vec_env.VecMonitor(ReplaySB3VecEnv(4, **settings))
    rng, returns = np.random.default_rng(0), []
    assert normal.unwrapped.bank.fingerprint == normal.bank.fingerprint == plain.bank.fingerprint
    assert normal.get_attr("feature_names")[0] == plain.feature_names
    for env in (plain, normal, watched):
        env.seed(5)
        env.reset()
    for _ in range(40):
        actions = rng.integers(len(plain.bank), size=4)
        observations, rewards, _, infos = plain.step(actions)
        normal.step(actions)
        np.testing.assert_array_equal(normal.get_original_obs(), observations)
        np.testing.assert_array_equal(normal.get_original_reward(), rewards)
        for info, other in zip(infos, watched.step(actions)[3], strict=True):
            if info:
                returns.append(info["episode"]["r"])
                assert other["episode"]["r"] == pytest.approx(returns[-1], rel=1e-5)
                assert other["episode"]["l"] == info["episode"]["l"]
    assert len(returns) > 10


def schedule(env, spec):
    """What a policy that is built for some environments does in them."""
    policy, state, starts, actions = make_policy(spec, env), None, np.ones(4, dtype=bool), []
    if isinstance(env, vec_env.VecEnv):
        env.seed(0)
        seen = env.reset()
    else:
        seen, _ = env.reset(seed=0)
    for _ in range(30):
        chosen, state = policy.predict(seen, state, starts)
        seen, _, starts, *others = env.step(chosen)
        if len(others) > 1:
            starts = starts | others[0]
        actions.append(chosen.tolist())
    return actions


@pytest.mark.parametrize(
    "spec",
    [
        *(f"{name}@{bank}" for name, bank in FILES if bank == "smollm2-pooled"),
        "value:rate=60@smollm2-pooled",
        "oracle",
        "bandit",
        "ucb",
    ],
)
def test_a_policy_finds_what_it_reads_of_its_environment(settings, spec):
    settings = settings | {"bank": "smollm2-pooled"}
    envs = ReplaySB3VecEnv(4, **settings), ReplayVectorEnv(4, "SameStep", **settings)
    actions = [schedule(env, spec) for env in envs]
    assert actions[0] == actions[1]


@pytest.mark.parametrize("name", [name for name, bank in FILES if bank == "smollm2-staged"])
def test_a_staged_policy_finds_what_it_reads_of_its_environment(tmp_path, name):
    settings = staged_settings(tmp_path, stages=load_stages("smollm2-staged"), texts=5, depth=4)
    envs = StagedReplaySB3VecEnv(4, **settings), StagedReplayVectorEnv(4, "SameStep", **settings)
    actions = [schedule(env, f"{name}@smollm2-staged") for env in envs]
    assert actions[0] == actions[1]


@pytest.mark.parametrize("spec", ["static:hydra-default", "threshold:on=0.6", "random"])
def test_stable_baselines_evaluates_policies(settings, dummy, spec):
    env = ReplaySB3VecEnv(4, **settings)
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in (env, dummy):
            one.seed(2)
            policy = make_policy(spec, env)
            scores.append(
                evaluation.evaluate_policy(policy, one, n_eval_episodes=12, return_episode_rewards=True)
            )
    assert scores[0] == scores[1]
    assert len(scores[0][0]) == 12


def test_ppo_trains(settings):
    env = ReplaySB3VecEnv(8, **settings)
    model = sb3.PPO("MlpPolicy", env, n_steps=16, batch_size=64, policy_kwargs={"net_arch": [8]}, seed=0)
    before = model.policy.action_net.weight.detach().clone()
    model.learn(256)
    assert model.num_timesteps == 256
    assert not before.equal(model.policy.action_net.weight)
    assert len(model.ep_info_buffer) > 8
    assert all(info["r"] > 0 and info["l"] <= 8 for info in model.ep_info_buffer)
    actions, _ = model.predict(env.reset())
    assert actions.shape == (8,)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    return staged_settings(tmp_path_factory.mktemp("staged"), texts=5, longest=12, cap=12)


def test_staged_environments_go_through_what_single_ones_go_through(staged):
    env, rng = StagedReplaySB3VecEnv(4, **staged), np.random.default_rng(1)
    dummy = vec_env.DummyVecEnv([lambda: monitor.Monitor(StagedReplayEnv(**staged))] * 4)
    env.seed(7), dummy.seed(7)
    np.testing.assert_array_equal(env.reset(), dummy.reset())
    ended = 0
    for _ in range(150):
        masks = np.stack(env.env_method("action_masks"))
        np.testing.assert_array_equal(masks, np.stack(dummy.env_method("action_masks")))
        np.testing.assert_array_equal(env.env_method("action_masks", indices=[2])[0], masks[2])
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        (observations, rewards, dones, infos), expected = env.step(actions), dummy.step(actions)
        np.testing.assert_allclose(observations, expected[0], rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(rewards, expected[1])
        np.testing.assert_array_equal(dones, expected[2])
        for i in np.flatnonzero(dones):
            info, other = (without_time(own[i]) for own in (infos, expected[3]))
            np.testing.assert_array_equal(info.pop("action_mask"), other.pop("action_mask"))
            assert info == other
            ended += 1
    assert ended > 10
    with pytest.raises(NotImplementedError, match="'warm_up'"):
        env.env_method("warm_up")


def test_maskable_ppo_takes_legal_actions_only(staged):
    maskable = pytest.importorskip("sb3_contrib")
    normal = vec_env.VecNormalize(StagedReplaySB3VecEnv(8, **staged))
    model = maskable.MaskablePPO("MlpPolicy", normal, n_steps=32, batch_size=64, n_epochs=1, seed=0)
    model.learn(512)
    buffer = model.rollout_buffer
    actions, masks = buffer.actions.astype(int).reshape(-1), buffer.action_masks.reshape(-1, 7)
    assert masks[np.arange(len(actions)), actions].all()
    assert not masks.all()
