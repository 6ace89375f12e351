import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.rewards import make_reward

SPECS = ("tokens_per_second", "throughput_advantage:reference=45", "step_tokens_per_second")

steps = st.tuples(st.integers(1, 64), st.floats(1e-4, 10.0))
episodes = st.lists(steps, min_size=1, max_size=50)


def rewards_of(spec, episode):
    reward, tokens_before, seconds_before, out = make_reward(spec), 0, 0.0, []
    for tokens, seconds in episode:
        out.append(reward(tokens, seconds, tokens_before, seconds_before))
        tokens_before += tokens
        seconds_before += seconds
    return out


@given(episodes)
def test_tokens_per_second_sums_to_the_throughput_of_the_episode(episode):
    tokens, seconds = (sum(column) for column in zip(*episode, strict=True))
    assert sum(rewards_of("tokens_per_second", episode)) == pytest.approx(tokens / seconds, rel=1e-6)


@given(episodes, st.floats(0.1, 1000.0))
def test_advantage_sums_to_the_tokens_won_over_the_reference(episode, reference):
    tokens, seconds = (sum(column) for column in zip(*episode, strict=True))
    won = sum(rewards_of(f"throughput_advantage:reference={reference!r}", episode))
    assert won == pytest.approx(tokens - reference * seconds, rel=1e-6, abs=1e-6)


def test_the_first_step_starts_from_zero():
    assert make_reward()(4, 0.5, 0, 0.0) == 8.0


def test_three_slow_short_steps_outscore_one_long_step_in_step_tokens_per_second_only():
    short, long = [(1, 0.1)] * 3, [(4, 0.2)]  # 10 tok/s and 20 tok/s
    for spec in SPECS[:2]:
        assert sum(rewards_of(spec, short)) < sum(rewards_of(spec, long))
    assert sum(rewards_of("step_tokens_per_second", short)) > sum(rewards_of("step_tokens_per_second", long))


@pytest.mark.parametrize("spec", SPECS)
def test_batched_equals_scalar(spec):
    rng = np.random.default_rng(0)
    reward = make_reward(spec)
    tokens, seconds = rng.integers(1, 6, size=8), rng.uniform(0.01, 0.1, size=8)
    before, seconds_before = rng.integers(1, 100, size=8), rng.uniform(1.0, 2.0, size=8)
    before[:3], seconds_before[:3] = 0, 0.0
    columns = (tokens, seconds, before, seconds_before)
    singles = [reward(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
    assert all(isinstance(value, float) for value in singles)
    np.testing.assert_array_equal(reward(*columns), singles)


@pytest.mark.parametrize("spec", SPECS)
def test_rewards_survive_pickling(spec):
    arguments = (3, 0.1, 5, 0.5)
    assert pickle.loads(pickle.dumps(make_reward(spec)))(*arguments) == make_reward(spec)(*arguments)


MODULE = """
def per_token(tokens, seconds, total_tokens_before, total_seconds_before, *, price=0.0):
    return tokens * (1 - price)


def short(tokens, seconds):
    return tokens


nameless = lambda *step: 0.0
number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Name of a module in the current directory, which is not on ``sys.path``."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield "my_rewards"
    sys.modules.pop("my_rewards", None)


@pytest.mark.parametrize("separator", [":", ","])
def test_a_function_of_ones_own_by_import_path(module, separator):
    path = list(sys.path)
    assert make_reward(f"{module}:per_token")(3, 0.1, 5, 0.5) == 3
    reward = make_reward(f"{module}:per_token{separator}price=0.25")
    np.testing.assert_array_equal(reward(np.array([4, 8]), np.ones(2), np.zeros(2), np.zeros(2)), [3, 6])
    assert sys.path == path
    code = f"import pickle; print(pickle.loads({pickle.dumps(reward)!r})(4, 0.1, 5, 0.5))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout.strip() == b"3.0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("my_rewards:per_tokn", "no 'per_tokn'; its classes and functions are: per_token, short"),
        (
            "no_such_module:f",
            "reward 'no_such_module:f': no module 'no_such_module' can be imported from here",
        ),
        (
            "my_rewards:per_token,cost=1",
            "argument 'cost'; write a top-level function f.tokens, seconds, total",
        ),
        ("my_rewards:short", "too many positional arguments; write a top-level function"),
        ("my_rewards:nameless", "lambda.*; write a top-level function"),
        ("my_rewards:number", "3 is not a callable object; write a top-level function"),
        ("my_rewards:per_token@file.json", "name a function of your own: package.module:function:key=value"),
    ],
)
def test_a_function_that_is_no_reward_is_explained(module, spec, message):
    with pytest.raises(ValueError, match=message):
        make_reward(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "throughput",
            "'throughput'; choose one of tokens_per_second, throughput_advantage, step_tokens_per_second",
        ),
        ("throughput_advantage", "write throughput_advantage:reference=45"),
        ("throughput_advantage:reference=0", "a positive number"),
        ("throughput_advantage:reference=-4", "a positive number"),
        ("throughput_advantage:reference=fast", "a positive number"),
        ("throughput_advantage:reference=true", "a positive number"),
        ("throughput_advantage:reference=45,scale=2", "only the option 'reference'"),
        ("throughput_advantage@reward.json", "only the option 'reference'"),
        ("tokens_per_second:reference=45", "takes no options"),
        ("step_tokens_per_second:45", "takes no options"),
    ],
)
def test_wrong_specs_are_named(spec, message):
    with pytest.raises(ValueError, match=message):
        make_reward(spec)
