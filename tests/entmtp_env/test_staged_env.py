import copy
import itertools
import math
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import entmtp_env  # noqa: F401
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import DEEPER, Stages

ID = "EntMTP/Staged-v0"
STAGES = Stages("tiny", DraftShape((1, 2, 2, 2), (4, 3, 2, 2)), (0, 1, 2, 4, 8, 16))


@pytest.fixture
def make(tiny_files, tmp_path):
    STAGES.save(tmp_path / "stages.json")

    def build(**overrides):
        settings = tiny_files.kwargs | {"stages": str(tmp_path / "stages.json")} | overrides
        return gymnasium.make(ID, **settings)

    return build


def play(env, choose, **reset):
    """Every (observation, reward, terminated, truncated, info) of an episode; the reset first."""
    observation, info = env.reset(**reset)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(choose(steps[-1][4]["action_mask"])))
    return steps


def at_random(seed):
    rng = np.random.default_rng(seed)
    return lambda mask: rng.choice(mask.nonzero()[0])


def test_checkers_find_nothing(make):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(render_mode="ansi").unwrapped)
        sb3.check_env(make())


@pytest.mark.parametrize("acceptance", ["greedy", "sample:temperature=0.8"])
def test_the_text_does_not_depend_on_the_decisions(make, acceptance):
    env, live = make(acceptance=acceptance), make(acceptance=acceptance)
    for seed, prompt in enumerate(("t0", "t3", "t5")):
        reset = {"seed": 5, "options": {"prompt_id": prompt}}
        expected = play(live, lambda _: 1, **reset)[-1][4]
        got = play(env, at_random(seed), **reset)[-1][4]
        assert (got["text"], got["finish_reason"]) == (expected["text"], expected["finish_reason"])
        assert got["total_tokens"] == expected["total_tokens"] > 0


def test_decisions_and_what_they_return(make):
    env = make()
    observation, info = env.reset(seed=1)
    names = env.unwrapped.feature_names
    assert info["action_mask"].tolist() == [1, 1, 0, 0, 0, 0, 0]
    assert observation[names.index("stage") :].tolist() == [0] * (len(names) - names.index("stage"))
    for depth in range(1, 5):
        before = dict(zip(names, observation, strict=True))
        observation, _, terminated, truncated, info = env.step(DEEPER)
        seen = dict(zip(names, observation, strict=True))
        table = env.unwrapped.decoder.table
        assert (info["tree"], info["tokens"], terminated, truncated) == ("", 0, False, False)
        assert info["feature_seconds"] > 0
        assert info["draft_seconds"] + info["feature_seconds"] == pytest.approx(info["seconds"])
        assert info["draft_seconds"] > info["verify_seconds"] == 0
        assert seen["stage"] == depth / 4
        assert seen[f"depth_{depth}_value_1"] == np.float32(max(table.level))
        assert seen[f"depth_{depth}_sum"] == pytest.approx(sum(table.level), rel=1e-5)
        assert seen["budget_4_value"] == pytest.approx(sum(sorted(table.values[1:])[-4:]))
        assert seen["budget_4_value"] >= before["budget_4_value"]
        assert seen["base_top1"] == before["base_top1"]
        np.testing.assert_array_equal(env.unwrapped.action_masks(), STAGES.masks[depth])
        np.testing.assert_array_equal(info["action_mask"], STAGES.masks[depth])
    observation, _, _, _, info = env.step(4)
    assert (info["tree"], info["tokens"]) == ("verify-4", info["accept_length"] + 1)
    assert len(env.unwrapped.decoder.built) == 4
    assert info["verify_seconds"] > info["draft_seconds"] == 0
    parts = [info[f"{part}_seconds"] for part in ("verify", "accept", "commit", "feature")]
    assert min(parts) > 0
    assert sum(parts) <= info["seconds"]
    assert observation[names.index("last_tree")] == np.float32(3 / 5)
    assert observation[names.index("stage") :].max() == 0


def test_an_illegal_action_is_taken_as_the_largest_budget_that_can_be_filled(make):
    env = make(max_new_tokens=20)
    env.reset(seed=1)
    assert env.step(6)[4]["tree"] == "verify-0"
    env.step(DEEPER)
    assert env.step(6)[4]["tree"] == "verify-4"
    for _ in range(4):
        env.step(DEEPER)
    assert env.step(DEEPER)[4]["tree"] == "verify-16"
    for action in (-1, 7):
        with pytest.raises(ValueError, match=rf"action {action} is outside 0..6: deeper, verify-0"):
            env.step(action)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("tokens_per_second", lambda info: info["total_tokens"] / info["total_seconds"]),
        (
            "throughput_advantage:reference=70",
            lambda info: info["total_tokens"] - 70 * info["total_seconds"],
        ),
    ],
)
def test_rewards_sum_to_what_they_promise(make, reward, expected):
    env = make(reward=reward)
    for seed in range(3):
        steps = play(env, at_random(seed), seed=seed)
        info = steps[-1][4]
        assert math.fsum(step[1] for step in steps) == pytest.approx(expected(info))
        assert info["total_seconds"] == pytest.approx(sum(step[4]["seconds"] for step in steps))
        assert info["total_tokens"] == sum(step[4]["tokens"] for step in steps)


def test_types_and_bounds_of_everything_returned(make):
    env = make()
    steps = play(env, at_random(0), seed=2)
    kinds = {key: type(value) for key, value in steps[0][4].items()}
    for observation, reward, terminated, truncated, info in steps:
        assert env.observation_space.contains(observation)
        assert type(reward) is float
        assert type(terminated) is type(truncated) is bool
        assert {key: type(value) for key, value in info.items()} == kinds
    assert len({id(step[0]) for step in steps}) == len(steps)
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.unwrapped.step(1)


def test_the_same_decisions_give_the_same_under_a_fixed_clock(make):
    def run():
        env, ticks = make(), itertools.count()
        env.unwrapped.clock = lambda: next(ticks) * 0.001
        return play(env, at_random(1), seed=3)

    for one, other in zip(run(), run(), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert one[1:4] == other[1:4]


def test_environments_are_made_of_names_and_can_be_copied(make):
    env = make().unwrapped
    for twin in (
        copy.deepcopy(env),
        pickle.loads(pickle.dumps(gymnasium.make(env.spec).unwrapped.spec)).make(),
    ):
        assert twin.unwrapped.feature_names == env.feature_names
    env.warm_up()
    with pytest.raises(ResetNeeded):
        env.step(1)
    assert env.manifest["bank_fingerprint"] == STAGES.fingerprint


@pytest.mark.parametrize("action", [DEEPER, 2])
def test_a_full_device_ends_the_episode_and_says_where(make, monkeypatch, action):
    env = make().unwrapped
    env.reset(seed=1)
    env.step(DEEPER)
    name = "deepen" if action == DEEPER else "verify_best"

    def fail(*args):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(env.decoder, name, fail)
    observation, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == (False, True)
    assert info["finish_reason"].startswith("error: prompt")
    assert f"depth 1, {STAGES.names[action]}: no memory" in info["finish_reason"]
    assert env.observation_space.contains(observation)
    with pytest.raises(ResetNeeded):
        env.step(1)
    monkeypatch.undo()
    env.reset()
    assert env.step(1)[4]["tokens"] == 1
