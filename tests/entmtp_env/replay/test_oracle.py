import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.tables import ReplayTables
from tests.recordings import BANK, COSTS, accepted, random_recording, saved_settings, seconds

TREES = range(len(BANK))


def random_tables(seed, cap=None, capacity=64, **recording):
    made = random_recording(np.random.default_rng(seed), **recording)
    return ReplayTables.build(made, load_costs(COSTS), BANK, cap, capacity)


def play(tables, text, choose):
    """Seconds and trees of one text under ``choose(position)``, by definition and step by step."""
    recording, told = tables.recording, tables.recording.texts[text]
    length = min(tables.max_new_tokens, int(recording.lengths[text]))
    position, total, trees = 0, 0.0, []
    while position < length and told.prompt_tokens + position + 1 + BANK.max_nodes <= tables.capacity:
        trees.append(choose(position))
        total += seconds(BANK[trees[-1]], told.prompt_tokens + position)
        ranks = recording.ranks[recording.offsets[text] + position]
        position += min(accepted(BANK[trees[-1]], ranks) + 1, length - position)
    return total, trees


def all_schedules(tables, text, taken=()):
    """Seconds of every schedule of one text: each sequence of trees until it ends."""
    steps = iter(taken)

    def choose(position):
        return next(steps)

    try:
        total, _ = play(tables, text, choose)
    except StopIteration:
        for action in TREES:
            yield from all_schedules(tables, text, (*taken, action))
    else:
        yield total


@pytest.mark.parametrize("capacity", [14, 64])
@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_of_all_is_faster(seed, capacity):
    tables = random_tables(seed, cap=5, capacity=capacity)
    oracle = solve(tables)
    for text in range(3):
        assert oracle.seconds[text] == pytest.approx(min(all_schedules(tables, text)))


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), cap=st.integers(1, 12), capacity=st.integers(13, 40))
def test_no_policy_is_faster_and_its_own_schedule_is_as_fast(seed, cap, capacity):
    tables, rng = random_tables(seed, cap, capacity, texts=4), np.random.default_rng(seed)
    oracle = solve(tables)
    taken = np.array([play(tables, text, lambda _: int(rng.integers(len(BANK))))[0] for text in range(4)])
    assert (oracle.seconds <= taken + 1e-12).all()
    assert (oracle.regret(taken) >= 1 - 1e-12).all()
    np.testing.assert_allclose(oracle.regret(oracle.seconds), 1)
    for text in range(4):
        schedule = oracle.schedule(text)
        steps = iter(schedule)
        total, trees = play(tables, text, lambda _, steps=steps: next(steps))
        assert total == pytest.approx(oracle.seconds[text])
        assert trees == schedule


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(13, 40))
def test_static_schedules(seed, capacity):
    tables = random_tables(seed, capacity=capacity)
    oracle = solve(tables)
    expected = [[play(tables, text, lambda _, k=k: k)[0] for text in range(3)] for k in TREES]
    np.testing.assert_allclose(oracle.static_seconds, expected)
    totals = np.sum(expected, axis=1)
    assert totals[oracle.best_static] == pytest.approx(totals.min())
    assert oracle.headroom == pytest.approx(totals.min() / oracle.seconds.sum())
    assert oracle.headroom >= 1 - 1e-12


def test_schedules_take_their_time_in_the_environment(tmp_path):
    recording = random_recording(np.random.default_rng(3), texts=5)
    env = ReplayEnv(**saved_settings(tmp_path, recording))
    oracle = solve(env.tables)
    for text, told in enumerate(recording.texts):
        env.reset(options={"prompt_id": told.prompt_id})
        *_, (_, _, terminated, truncated, info) = [env.step(action) for action in oracle.schedule(text)]
        assert terminated or truncated
        assert info["total_seconds"] == pytest.approx(oracle.seconds[text])
    assert oracle.headroom > 1.01


def test_values_count_from_every_position():
    tables = random_tables(5, texts=1, longest=12)
    oracle = solve(tables)
    assert oracle.values[tables.ends[0]] == 0
    assert oracle.values[tables.starts[0]] == oracle.seconds[0]
    for row in range(int(tables.starts[0]), int(tables.ends[0])):
        action = oracle.actions[row]
        rest = oracle.values[row + tables.emitted[action, row]]
        assert oracle.values[row] == pytest.approx(seconds(BANK[action], tables.contexts[row]) + rest)


def test_regret_needs_a_time_per_text():
    oracle = solve(random_tables(0))
    for wrong in (1.0, np.ones(2), np.ones((3, 1))):
        with pytest.raises(ValueError, match=r"one time per text, \(3,\)"):
            oracle.regret(wrong)
