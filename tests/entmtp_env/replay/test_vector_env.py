import copy
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList

from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv
from tests.recordings import BANK, random_recording, saved_settings

ID = "EntMTP/Replay-v0"
N, STEPS = 4, 80
REWARDS = ("tokens_per_second", "throughput_advantage:reference=40", "step_tokens_per_second")


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(1), texts=3, longest=9, cap=9, candidates=BANK.union)
    return saved_settings(tmp_path_factory.mktemp("random"), recording)


@pytest.fixture
def actions():
    return np.random.default_rng(2).integers(len(BANK), size=(STEPS, N))


def same_outcomes(seen, expected):
    """Compare observations, rewards and flags; the features of many are computed in single precision."""
    np.testing.assert_allclose(seen[0], expected[0], atol=1e-6)
    for mine, other in zip(seen[1:4], expected[1:4], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12, atol=1e-9)


def same_infos(seen, expected):
    assert len(seen) == len(expected)
    for mine, other in zip(seen, expected, strict=True):
        assert mine.keys() == other.keys()
        for key, value in other.items():
            if key == "final_info":
                same_infos([mine[key]], [value])
            elif key == "final_obs":
                np.testing.assert_allclose(mine[key], value, atol=1e-6)
            else:
                assert mine[key] == pytest.approx(value), key


@pytest.mark.parametrize("probe", ["none", "first", "chain", "union"])
@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_many_are_what_gymnasium_makes_of_single_ones(settings, actions, mode, reward, probe):
    settings = settings | {"reward": reward, "probe": probe}
    many = DictInfoToList(ReplayVectorEnv(N, autoreset_mode=mode, **settings))
    singles = DictInfoToList(
        gymnasium.make_vec(ID, N, "sync", vector_kwargs={"autoreset_mode": mode}, **settings)
    )
    assert many.observation_space == singles.observation_space
    assert many.action_space == singles.action_space
    assert many.metadata["autoreset_mode"] == singles.metadata["autoreset_mode"] == mode
    (seen, infos), (expected, expected_infos) = (envs.reset(seed=11) for envs in (many, singles))
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    same_infos(infos, expected_infos)
    ended = 0
    for action in actions:
        step, expected_step = many.step(action), singles.step(action)
        same_outcomes(step, expected_step)
        same_infos(step[4], expected_step[4])
        ended += (step[2] | step[3]).sum()
    assert ended > 4 * N


@pytest.mark.parametrize("shorter", [{"max_new_tokens": 4}, {"capacity": 14}])
def test_trajectories_are_those_of_single_environments(settings, actions, shorter):
    """Without automatic resets, in several rounds through the prompts."""
    settings = settings | shorter
    envs = ReplayVectorEnv(N, autoreset_mode="Disabled", **settings)
    singles = [ReplayEnv(**settings) for _ in range(N)]
    seen, infos = envs.reset(seed=5)
    expected = [env.reset(seed=5 + i) for i, env in enumerate(singles)]
    reasons = set()
    for action in actions:
        np.testing.assert_allclose(seen, [observation for observation, *_ in expected], atol=1e-6)
        assert envs.place[0].tolist() == [env.place[0] for env in singles]
        assert envs.place[1].tolist() == [env.place[1] for env in singles]
        tokens, seconds = envs.last_step
        assert list(zip(tokens, seconds, strict=True)) == [env.last_step for env in singles]
        step = envs.step(action)
        expected = [env.step(one) for env, one in zip(singles, action, strict=True)]
        same_outcomes(step, [np.array(column) for column in list(zip(*expected, strict=True))[:4]])
        same_infos(
            [{key: values[i] for key, values in step[4].items()} for i in range(N)], [e[4] for e in expected]
        )
        reasons |= set(step[4]["finish_reason"])
        seen, ended = step[0], step[2] | step[3]
        if ended.any():
            seen, infos = envs.reset(options={"reset_mask": ended})
            for i in np.flatnonzero(ended):
                expected[i] = singles[i].reset()
                same_infos([{key: values[i] for key, values in infos.items()}], [expected[i][1]])
    assert {"length", "context"} & reasons


def test_returns_are_throughputs(settings, actions):
    envs = ReplayVectorEnv(N, autoreset_mode="SameStep", **settings)
    envs.reset(seed=0)
    returns, episodes = np.zeros(N), 0
    for action in actions:
        _, rewards, terminated, truncated, infos = envs.step(action)
        returns += rewards
        for i in np.flatnonzero(terminated | truncated):
            last = {key: infos["final_info"][key][i] for key in ("total_tokens", "total_seconds")}
            assert returns[i] == pytest.approx(last["total_tokens"] / last["total_seconds"])
            returns[i], episodes = 0, episodes + 1
    assert episodes > 4 * N


def test_resets_that_only_begin_a_text_are_no_decode_steps(settings, actions):
    envs = ReplayVectorEnv(N, **settings)
    envs.reset(seed=0)
    ended, resets = np.zeros(N, dtype=bool), 0
    for action in actions:
        _, rewards, terminated, truncated, infos = envs.step(action)
        for i in range(N):
            counts = (rewards[i], infos["tokens"][i], infos["seconds"][i], infos["tree"][i])
            assert [part[i] for part in envs.last_step] == [infos["tokens"][i], infos["seconds"][i]]
            if ended[i]:
                assert counts == (0, 0, 0, "")
                resets += 1
            else:
                assert infos["tokens"][i] == infos["accept_length"][i] + 1
                assert infos["seconds"][i] > 0
        ended = terminated | truncated
    assert resets > 2 * N


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_it_tells_where_texts_begin(settings, actions, mode):
    envs = ReplayVectorEnv(N, mode, **settings)
    envs.reset(seed=0)
    assert envs.episode_start.all()
    ended, begun = np.zeros(N, dtype=bool), 0
    for chosen in actions:
        before = ended
        _, _, terminated, truncated, _ = envs.step(chosen)
        ended = terminated | truncated
        np.testing.assert_array_equal(envs.episode_start, before if mode == "NextStep" else ended)
        begun += envs.episode_start.sum()
    assert begun > 10
    envs = ReplayVectorEnv(N, "Disabled", **settings)
    envs.reset(seed=0)
    envs.reset(options={"reset_mask": np.arange(N) == 2})
    assert envs.episode_start.tolist() == [False, False, True, False]


def test_make_vec_takes_the_entry_point(settings):
    for mode in ("vector_entry_point", None):
        envs = gymnasium.make_vec(ID, num_envs=3, vectorization_mode=mode, **settings)
        assert isinstance(envs.unwrapped, ReplayVectorEnv)
        observations, _ = envs.reset(seed=0)
        assert observations.shape == (3, len(envs.unwrapped.feature_names))
        assert observations in envs.observation_space


def test_types_and_bounds_and_no_aliases(settings, actions):
    envs = ReplayVectorEnv(N, probe="union", **settings)
    observation, info = envs.reset(seed=1)
    kept = [(observation, info)]
    for action in actions[:20]:
        observation, rewards, terminated, truncated, info = envs.step(action)
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
        kept.append((observation, rewards, terminated, truncated, info))
    frozen = copy.deepcopy(kept)
    for action in actions[20:]:
        envs.step(action)
    envs.reset(seed=3)
    for entry, before in zip(kept, frozen, strict=True):
        assert entry[0].dtype == np.float32
        assert entry[0] in envs.observation_space
        assert set(entry[-1]) == set(info)
        values, old = ((*e[:-1], *e[-1].values()) for e in (entry, before))
        for mine, other in zip(values, old, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda envs: pickle.loads(pickle.dumps(envs))])
def test_copies_go_on_alike_and_apart(settings, actions, twin):
    envs = ReplayVectorEnv(N, **settings)
    envs.reset(seed=4)
    envs.step(actions[0])
    other = twin(envs)
    traces = [[one.step(action) for action in actions[1:]] for one in (envs, other)]
    for mine, theirs in zip(*traces, strict=True):
        for a, b in zip(mine[:4], theirs[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        assert mine[4]["prompt_id"].tolist() == theirs[4]["prompt_id"].tolist()


def test_seeds_for_each_environment(settings):
    envs = ReplayVectorEnv(3, autoreset_mode="Disabled", **settings)

    def rounds(**first):
        return [envs.reset(**(first if i == 0 else {}))[1]["prompt_id"].tolist() for i in range(6)]

    assert rounds(seed=6) == rounds(seed=[6, 7, 8]) == rounds(seed=np.int64(6))
    same = np.array(rounds(seed=[6, 6, 9]))
    assert same[:, 0].tolist() == same[:, 1].tolist()
    singles = [ReplayEnv(**settings) for _ in range(2)]
    for env, seed in zip(singles, (6, 9), strict=True):
        env.reset(seed=seed)
    onward = [[env.reset()[1]["prompt_id"] for env in singles] for _ in range(5)]
    assert same[1:, 1:].tolist() == onward
    with pytest.raises(ValueError, match="2 seeds for 3 environments"):
        envs.reset(seed=[1, 2])


def test_no_seed_means_a_random_one_and_none_keeps_the_generator(settings):
    orders = {tuple(ReplayVectorEnv(16, **settings).reset()[1]["prompt_id"].tolist()) for _ in range(3)}
    assert len(orders) > 1
    one, other = (ReplayVectorEnv(2, **settings) for _ in range(2))
    one.reset(seed=[1, 2])
    other.reset(seed=[1, 5])
    one.reset(), other.reset()
    one.reset(seed=[None, 5])
    other.reset(seed=[None, 5])
    for _ in range(5):
        assert one.reset()[1]["prompt_id"].tolist() == other.reset()[1]["prompt_id"].tolist()


def test_a_seed_touches_only_what_is_reset(settings):
    one, other = (ReplayVectorEnv(2, autoreset_mode="Disabled", **settings) for _ in range(2))
    for envs in (one, other):
        envs.reset(seed=1)
    mask = np.array([True, False])
    one.reset(seed=30, options={"reset_mask": mask})
    other.reset(seed=[30, None], options={"reset_mask": mask})
    for _ in range(6):
        assert one.reset()[1]["prompt_id"].tolist() == other.reset()[1]["prompt_id"].tolist()


def test_prompts_by_id(settings):
    envs = ReplayVectorEnv(3, autoreset_mode="Disabled", **settings)
    assert envs.reset(options={"prompt_id": "t1"})[1]["prompt_id"].tolist() == ["t1"] * 3
    ids = ["t2", "t0", "t2"]
    assert envs.reset(seed=0, options={"prompt_id": np.array(ids)})[1]["prompt_id"].tolist() == ids
    plain = ReplayVectorEnv(3, **settings)
    second = plain.reset(seed=0)[1]["prompt_id"]
    some = envs.reset(seed=0, options={"prompt_id": [None, "t0", None]})[1]["prompt_id"]
    assert some.tolist() == [second[0], "t0", second[2]]
    assert envs.reset()[1]["prompt_id"].tolist() == plain.reset()[1]["prompt_id"].tolist()
    mask = np.array([True, False, True])
    before = envs.place[0][1]
    _, infos = envs.reset(options={"prompt_id": ["t0", "t1"], "reset_mask": mask})
    assert infos["prompt_id"].tolist() == ["t0", before, "t1"]


def test_a_partial_reset_leaves_the_others_alone(settings):
    envs = ReplayVectorEnv(3, autoreset_mode="Disabled", **settings)
    envs.reset(seed=0, options={"prompt_id": "t1"})
    observations, *_, infos = envs.step(np.zeros(3, dtype=int))
    mask = np.array([False, True, False])
    after, again = envs.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(after[~mask], observations[~mask])
    assert envs.place[1].tolist() == [1, 0, 1]
    assert again["total_tokens"].tolist() == [1, 0, 1]
    assert again["tokens"].tolist() == [1, 0, 1]
    assert again.keys() == infos.keys()
    for key, values in infos.items():
        assert again[key][~mask].tolist() == values[~mask].tolist()
    assert infos["tokens"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "t1"}, r"unknown reset options \['prompt'\]"),
        ({"prompt_id": "nope"}, "no prompt 'nope'"),
        ({"prompt_id": ["t0", "nope", "t1"]}, "no prompt 'nope'"),
        ({"prompt_id": ["t0", "t1"]}, "2 prompt ids for 3 environments"),
        ({"reset_mask": np.ones(2, dtype=bool)}, "reset_mask"),
        ({"reset_mask": np.ones(3)}, "reset_mask"),
        ({"reset_mask": np.zeros(3, dtype=bool)}, "reset_mask"),
    ],
)
def test_wrong_reset_options_change_nothing(settings, options, message):
    envs, untouched = (ReplayVectorEnv(3, **settings) for _ in range(2))
    for one in (envs, untouched):
        one.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.reset(seed=1, options=options)
    assert envs.reset()[1]["prompt_id"].tolist() == untouched.reset()[1]["prompt_id"].tolist()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(2, dtype=int), r"integers, \(3,\); got int64 \(2,\)"),
        (np.zeros((3, 1), dtype=int), r"\(3,\)"),
        (np.zeros(3), "float64"),
        (np.array([0, -1, 0]), r"outside 0\.\.3"),
        (np.array([0, 4, 0]), r"outside 0\.\.3"),
    ],
)
def test_wrong_actions_are_refused(settings, actions, message):
    envs = ReplayVectorEnv(3, **settings)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.step(actions)


def test_stepping_needs_texts_in_progress(settings):
    none = np.zeros(2, dtype=int)
    for mode in AutoresetMode:
        with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
            ReplayVectorEnv(2, autoreset_mode=mode, **settings).step(none)
    envs = ReplayVectorEnv(2, autoreset_mode="Disabled", max_new_tokens=1, **settings)
    envs.reset(seed=0)
    envs.step(none)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        envs.step(none)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        ReplayVectorEnv(2, **settings).reset(options={"reset_mask": np.array([True, False])})


def test_without_a_number_there_is_one_for_each_text(settings):
    envs = ReplayVectorEnv(None, **settings)
    assert envs.num_envs == len(envs.prompts) == 3
    assert len(envs.reset(seed=0)[0]) == 3


def test_there_must_be_an_environment(settings):
    with pytest.raises(ValueError, match="at least 1"):
        ReplayVectorEnv(0, **settings)
