import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.replay.staged_env import StagedReplayEnv
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from tests.staged import STAGES, measured_costs, staged_settings

ID = "EntMTP/StagedReplay-v0"
N = 4
REWARDS = ("tokens_per_second", "throughput_advantage:reference=40", "step_tokens_per_second")
FREE_DRAFTS, MEASURED = "analytic:base=0.02", "measured"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    measured_costs(folder)
    return staged_settings(folder, seed=3, texts=3, longest=9, cap=9)


def same_outcomes(seen, expected):
    """Compare observations, rewards and flags; the features of many are computed in single precision."""
    np.testing.assert_allclose(seen[0], expected[0], atol=1e-6)
    for mine, other in zip(seen[1:4], expected[1:4], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-9)


def same_info(mine, other):
    assert mine.keys() == other.keys()
    for key, value in other.items():
        if key == "final_info":
            same_info(mine[key], value)
        elif key == "final_obs":
            np.testing.assert_allclose(mine[key], value, atol=1e-6)
        elif key == "action_mask":
            assert mine[key].dtype == value.dtype
            np.testing.assert_array_equal(mine[key], value)
        else:
            assert mine[key] == pytest.approx(value), key


@given(
    st.integers(0, 2**31),
    st.sampled_from(REWARDS),
    st.sampled_from(
        [{}, {"costs": FREE_DRAFTS}, {"costs": MEASURED}, {"max_new_tokens": 4}, {"capacity": 26}]
    ),
    st.sampled_from(["all", "acceptance,position"]),
)
@settings(max_examples=25, deadline=None)
def test_decisions_are_those_of_single_environments(arguments, seed, reward, changed, features):
    """Random actions, legal or not, with the text that ends begun anew at once."""
    own = arguments | {"reward": reward, "features": features} | changed
    if own["costs"] == MEASURED:
        own["costs"] = arguments["recording"].replace("recording.npz", "costs.json")
    envs = StagedReplayVectorEnv(N, autoreset_mode="Disabled", **own)
    singles = [StagedReplayEnv(**own) for _ in range(N)]
    rng = np.random.default_rng(seed)
    seen, info = envs.reset(seed=seed)
    expected = [env.reset(seed=seed + i) for i, env in enumerate(singles)]
    np.testing.assert_allclose(seen, [observation for observation, _ in expected], atol=1e-6)
    for _ in range(40):
        assert envs.action_masks().tolist() == [env.action_masks().tolist() for env in singles]
        assert list(zip(*envs.place, strict=True)) == [env.place for env in singles]
        actions = rng.integers(len(STAGES), size=N) * (rng.random(N) < 0.6)
        step = envs.step(actions)
        expected = [env.step(one) for env, one in zip(singles, actions, strict=True)]
        same_outcomes(step, [np.array(column) for column in list(zip(*expected, strict=True))[:4]])
        for i, (*_, other) in enumerate(expected):
            same_info({key: values[i] for key, values in step[4].items()}, other)
        assert list(zip(*envs.last_step, strict=True)) == [env.last_step for env in singles]
        ended = step[2] | step[3]
        if ended.any():
            seen, info = envs.reset(options={"reset_mask": ended})
            for i in np.flatnonzero(ended):
                observation, other = singles[i].reset()
                np.testing.assert_allclose(seen[i], observation, atol=1e-6)
                same_info({key: values[i] for key, values in info.items()}, other)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_many_are_what_gymnasium_makes_of_single_ones(arguments, mode):
    many = DictInfoToList(StagedReplayVectorEnv(N, autoreset_mode=mode, **arguments))
    singles = DictInfoToList(
        gymnasium.make_vec(ID, N, "sync", vector_kwargs={"autoreset_mode": mode}, **arguments)
    )
    assert many.observation_space == singles.observation_space
    assert many.action_space == singles.action_space
    rng, ended = np.random.default_rng(0), 0
    (seen, infos), (expected, expected_infos) = (envs.reset(seed=11) for envs in (many, singles))
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    for _ in range(120):
        for mine, other in zip(infos, expected_infos, strict=True):
            same_info(mine, other)
        actions = np.array([rng.choice(np.flatnonzero(info["action_mask"])) for info in infos])
        step, expected_step = many.step(actions), singles.step(actions)
        same_outcomes(step, expected_step)
        infos, expected_infos = step[4], expected_step[4]
        ended += (step[2] | step[3]).sum()
    assert ended > 4 * N


def test_make_vec_takes_the_entry_point(arguments):
    for mode in ("vector_entry_point", None):
        envs = gymnasium.make_vec(ID, num_envs=3, vectorization_mode=mode, **arguments)
        assert isinstance(envs.unwrapped, StagedReplayVectorEnv)
        observations, info = envs.reset(seed=0)
        assert observations in envs.observation_space
        assert info["action_mask"].tolist() == [STAGES.masks[0].tolist()] * 3
    assert envs.unwrapped.manifest["bank_fingerprint"] == STAGES.fingerprint


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_copies_go_on_alike_and_what_was_returned_stays(arguments, twin):
    envs = StagedReplayVectorEnv(N, **arguments)
    envs.reset(seed=4)
    kept = envs.step(np.zeros(N, dtype=int))
    frozen, other = copy.deepcopy(kept), twin(envs)
    rng = np.random.default_rng(1)
    for actions in rng.integers(len(STAGES), size=(60, N)):
        mine, theirs = envs.step(actions), other.step(actions)
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
    for entry, before in zip((*kept[:4], *kept[4].values()), (*frozen[:4], *frozen[4].values()), strict=True):
        np.testing.assert_array_equal(entry, before)


@pytest.mark.parametrize(
    ("actions", "message"),
    [(np.zeros(2, dtype=int), r"integers, \(3,\)"), (np.array([0, len(STAGES), 0]), r"outside 0\.\.6")],
)
def test_wrong_actions_are_refused(arguments, actions, message):
    envs = StagedReplayVectorEnv(3, **arguments)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.step(actions)
