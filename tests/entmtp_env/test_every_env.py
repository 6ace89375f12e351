"""What holds for every id: how others make it, and what a refused reset leaves."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import entmtp_env  # noqa: F401
from entmtp_env.render_modes import UnsupportedRenderModeError
from tests.recordings import random_recording, saved_settings
from tests.staged import staged_settings

LIVE = ("EntMTP/Live-v0", "EntMTP/Staged-v0", "EntMTP/PromptLookup-v0")
REPLAYS = ("EntMTP/Replay-v0", "EntMTP/StagedReplay-v0")


@pytest.fixture(params=(*LIVE, *REPLAYS))
def env_id(request):
    return request.param


@pytest.fixture
def settings(env_id, tiny_files, tmp_path):
    if env_id in LIVE:
        return tiny_files.kwargs
    if env_id == "EntMTP/Replay-v0":
        return saved_settings(tmp_path, random_recording(np.random.default_rng(0)))
    return staged_settings(tmp_path)


@pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array'")
def test_gymnasium_passes_the_refusal_on(env_id, settings):
    with pytest.raises(UnsupportedRenderModeError, match="'rgb_array' is not supported"):
        gymnasium.make(env_id, render_mode="rgb_array", **settings)


@pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array'")
@pytest.mark.parametrize("mode", [{}, {"render_mode": None}])
def test_stable_baselines3_makes_them_by_id(env_id, settings, mode):
    env_util = pytest.importorskip("stable_baselines3.common.env_util")
    envs = env_util.make_vec_env(env_id, n_envs=2, seed=0, env_kwargs=settings | mode)
    observations = envs.reset()
    assert observations.shape == (2, *envs.observation_space.shape)
    assert envs.step(np.array([1, 1]))[0].shape == observations.shape
    assert envs.render_mode is None


def test_spawned_workers_find_an_id_by_its_module(tmp_path):
    env_util = pytest.importorskip("stable_baselines3.common.env_util")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    envs = env_util.make_vec_env(
        "entmtp_env:EntMTP/Replay-v0",
        env_kwargs=saved_settings(tmp_path, random_recording(np.random.default_rng(0)))
        | {"render_mode": None},
        vec_env_cls=vec_env.SubprocVecEnv,
        vec_env_kwargs={"start_method": "spawn"},
    )
    try:
        envs.reset()
        assert envs.step(np.array([1]))[1] > 0
    finally:
        envs.close()


def test_a_refused_reset_changes_nothing(env_id, settings):
    (env, untouched), after = (gymnasium.make(env_id, **settings).unwrapped for _ in range(2)), []
    for each in (env, untouched):
        each.reset(seed=4)
    for options in ({"prompt_id": "nope"}, {"prompt": "t1"}):
        with pytest.raises(ValueError, match=r"no prompt 'nope'|unknown reset options"):
            env.reset(seed=9, options=options)
    for each in (env, untouched):
        trace = [each.place, each.step(1)[4]["total_tokens"]]
        after.append(trace + [each.reset()[1]["prompt_id"] for _ in range(7)])
    assert after[0] == after[1]
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(1)
