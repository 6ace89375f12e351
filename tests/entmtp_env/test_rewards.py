import pickle

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
