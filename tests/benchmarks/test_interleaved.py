import numpy as np
import pytest

from benchmarks.interleaved import Finding, median_of, take_turns


def test_every_turn_is_taken_once_a_round_and_the_first_round_warms_up():
    taken, advanced = [], []

    def turn(name):
        def run():
            taken.append(name)
            return {name: float(len(taken)), f"{name} twice": 2.0 * len(taken)}

        return run

    samples = take_turns([turn(name) for name in "abc"], 4, lambda: advanced.append(1))
    rounds = [taken[i : i + 3] for i in range(0, 15, 3)]
    assert len(taken) == len(advanced) == 15
    assert all(sorted(own) == ["a", "b", "c"] for own in rounds)
    assert len({tuple(own) for own in rounds}) > 1
    for name in "abc":
        expected = [3 * r + rounds[r].index(name) + 1 for r in range(1, 5)]
        assert samples[name].tolist() == expected
        assert (samples[f"{name} twice"] == 2 * samples[name]).all()


def test_the_first_repeat_does_not_count():
    values = iter([[1e9, -1e9], [1, 5], [3, 4], [2, 6]])
    assert median_of(lambda: next(values), 3).tolist() == [2, 5]


def test_a_finding_has_the_quartiles():
    found = Finding.of("part", "name", np.array([5, 1, 2, 4, 3.0]), "µs", "≤ 4")
    assert (found.lower, found.value, found.upper) == pytest.approx((2, 3, 4))
    assert (found.unit, found.goal) == ("µs", "≤ 4")
