import numpy as np
import pytest

from train.drift import drift


def _machine(rng, rounds=9, trees=5, contexts=3):
    """What steps cost, and by what factor the machine is slow meanwhile."""
    cost = rng.uniform(0.02, 0.09, (trees, contexts))
    slow = np.exp(rng.normal(0, 0.3, (rounds, contexts)))
    return cost, slow


@pytest.mark.parametrize("seed", range(5))
def test_drift_and_costs_are_told_apart(seed):
    cost, slow = _machine(np.random.default_rng(seed))
    found = drift(cost * slow[:, None])
    assert found.shape == slow.shape
    steady = (cost * slow[:, None]) / found[:, None]
    # Nothing is left of the drift, and between trees nothing but what they cost.
    np.testing.assert_allclose(steady, np.broadcast_to(steady[0], steady.shape), rtol=1e-9)
    np.testing.assert_allclose(steady / steady[:, :1], np.broadcast_to(cost / cost[:1], steady.shape))


def test_a_machine_without_drift_has_none():
    cost, _ = _machine(np.random.default_rng(0))
    np.testing.assert_allclose(drift(np.broadcast_to(cost, (7, *cost.shape))), np.ones((7, 3)))


def test_context_lengths_keep_their_costs_when_all_drift_alike():
    cost, slow = _machine(np.random.default_rng(1))
    seconds = cost * slow[:, :1, None]
    steady = seconds / drift(seconds)[:, None]
    np.testing.assert_allclose(steady / steady[0, 0, 0], np.broadcast_to(cost / cost[0, 0], steady.shape))


def test_the_level_is_that_of_the_median_round():
    cost, _ = _machine(np.random.default_rng(2), trees=4, contexts=1)
    slow = np.array([1.0, 1.1, 1.0, 5.0, 0.9])[:, None]
    np.testing.assert_allclose(drift(cost * slow[:, None]), slow)


def test_single_outliers_change_nothing():
    cost, slow = _machine(np.random.default_rng(3))
    seconds = cost * slow[:, None]
    expected = drift(seconds)
    seconds[4, 2, 1] *= 30
    np.testing.assert_allclose(drift(seconds), expected, rtol=0.02)


def test_the_order_of_trees_and_rounds_is_no_matter():
    rng = np.random.default_rng(4)
    cost, slow = _machine(rng)
    seconds = cost * slow[:, None] * rng.uniform(0.95, 1.05, (9, 5, 3))
    rounds, trees = rng.permutation(9), rng.permutation(5)
    np.testing.assert_allclose(drift(seconds[rounds][:, trees]), drift(seconds)[rounds], rtol=1e-6)
