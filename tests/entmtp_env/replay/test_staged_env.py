import math
import pickle
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import entmtp_env  # noqa: F401
from entmtp_env.decoding.stages import DEEPER
from entmtp_env.replay.staged_env import StagedReplayEnv
from tests.recordings import seconds
from tests.staged import STAGES, staged_settings

ID = "EntMTP/StagedReplay-v0"


@pytest.fixture
def make(tmp_path):
    settings = staged_settings(tmp_path, texts=4)
    return lambda **overrides: gymnasium.make(ID, **(settings | overrides))


def play(env, seed):
    """Every (observation, reward, terminated, truncated, info) of an episode of random legal decisions."""
    rng = np.random.default_rng(seed)
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(rng.choice(steps[-1][4]["action_mask"].nonzero()[0])))
    return steps


def test_checkers_find_nothing(make):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make().unwrapped)
        sb3.check_env(make())


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
@pytest.mark.parametrize("costs", [None, "analytic:base=0.02"])
def test_rewards_sum_to_what_they_promise(make, reward, expected, costs):
    """Also where drafting is free, so that decisions take no time."""
    env = make(reward=reward, **({"costs": costs} if costs else {}))
    drafted = 0
    for seed in range(8):
        steps = play(env, seed)
        assert math.fsum(step[1] for step in steps) == pytest.approx(expected(steps[-1][4]))
        drafted += sum(step[4]["tree"] == "" for step in steps[1:])
    assert drafted > 8


def test_decisions_cost_what_the_formula_says(make):
    env = make()
    for seed in range(5):
        context, drafted, total = None, 0, 0.0
        for *_, info in play(env, seed)[1:]:
            if context is None:
                context = next(
                    t for t in env.unwrapped.prompts if t.prompt_id == info["prompt_id"]
                ).prompt_tokens
            if info["tree"]:
                nodes = int(info["tree"].removeprefix("verify-"))
                step = info["seconds"] + 0.001 * drafted
                assert step == pytest.approx(seconds(FakeTree(nodes, drafted), context))
                context, drafted = context + info["tokens"], 0
            else:
                assert info["seconds"] == info["draft_seconds"] == 0.001
                drafted += 1
            total += info["seconds"]
            assert info["draft_seconds"] + info["verify_seconds"] == info["seconds"]
        assert info["total_seconds"] == pytest.approx(total)


class FakeTree:
    def __init__(self, nodes, depth):
        self.nodes, self.depth = nodes, depth

    def __len__(self):
        return self.nodes


def test_illegal_actions_and_ends(make):
    env = make()
    env.reset(seed=0)
    assert env.step(len(STAGES) - 1)[4]["tree"] == "verify-0"
    for action in (-1, len(STAGES)):
        with pytest.raises(ValueError, match=f"action {action} is outside"):
            env.step(action)
    steps = play(env, 1)
    assert steps[-1][4]["text"].startswith("text ")
    with pytest.raises(ResetNeeded, match=r"call reset\(\)"):
        env.unwrapped.step(DEEPER)


def test_copies_are_independent_and_can_be_pickled(make):
    env = make().unwrapped
    env.reset(seed=0)
    twin = pickle.loads(pickle.dumps(env))
    env.step(DEEPER)
    assert twin.action_masks().tolist() == STAGES.masks[0].tolist()
    assert env.action_masks().tolist() == STAGES.masks[1].tolist()
    observation = twin.step(DEEPER)[0]
    np.testing.assert_array_equal(observation, env._tracker.observe())
    assert env.manifest["bank_fingerprint"] == STAGES.fingerprint


def test_wrong_arguments(make, tmp_path):
    with pytest.raises(ValueError, match="render_mode 'ansi' is not supported"):
        StagedReplayEnv("r.npz", "d.npz", render_mode="ansi")
    with pytest.raises(ValueError, match="draft again for these stages"):
        make(stages="default")
    with pytest.raises(FileNotFoundError):
        make(drafts=str(tmp_path / "none.npz"))
