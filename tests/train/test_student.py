import numpy as np
import pytest

from train.student import Student, expected_cost, squared_error


def examples(seed, count=2000):
    """Three outputs of two features; a third feature is always the same."""
    x = np.random.default_rng(seed).uniform(0, 1, size=(count, 3)).astype(np.float32)
    x[:, 2] = 0.3
    return x, np.stack([3 + x[:, 0], 2 + 4 * x[:, 1], np.full(count, 1.0)], axis=1).astype(float)


def learnt(loss, targets=lambda y: y, epochs=40, seed=0):
    (x, y), (other_x, other_y) = examples(0), examples(1)
    student = Student((x, targets(y)), loss, seed)
    calls = []
    student.learn((x, targets(y)), (other_x, targets(other_y)), epochs, lambda: calls.append(1))
    assert len(calls) == epochs
    return student.network()


def test_squared_error_finds_the_means_in_their_own_unit():
    x, y = examples(2)
    noisy = learnt(squared_error, lambda y: y + np.random.default_rng(9).normal(0, 0.3, y.shape))
    assert np.abs(learnt(squared_error)(x) - y).mean() < 0.1
    assert np.abs(noisy(x) - y).mean() < 0.12


def test_expected_cost_finds_the_cheapest_action():
    x, y = examples(2)
    network = learnt(expected_cost, lambda y: y.max(axis=1, keepdims=True) - y)
    lost = y.max(axis=1) - y[np.arange(len(y)), network(x).argmax(axis=1)]
    assert lost.mean() < 0.01
    assert len(set(y.argmax(axis=1))) == 2


def test_the_draws_of_what_expected_cost_taught_do_not_depend_on_the_unit_of_the_costs():
    x, y = examples(2)
    # Milliseconds, as seconds: logits as small would be those of an even draw.
    network = learnt(expected_cost, lambda y: 1e-3 * (y.max(axis=1, keepdims=True) - y))
    logits = network(x)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    lost = (chances * (y.max(axis=1, keepdims=True) - y)).sum(axis=1)
    assert lost.mean() < 0.05


def test_a_feature_that_never_varied_may_do_so_later():
    (x, _), network = examples(2), learnt(squared_error, epochs=5)
    before = network(x)
    x[:, 2] += 0.01
    assert np.abs(network(x) - before).max() < 0.02


def test_the_weights_that_are_best_on_the_validation_texts_are_kept():
    # Targets without rhyme or reason: every step of learning is one away from the others' mean.
    rng = np.random.default_rng(0)
    x = rng.random((40, 3), dtype=np.float32)
    own, other = (x, rng.normal(size=(40, 2))), (x, rng.normal(size=(40, 2)))
    student = Student(own, squared_error, 0)
    errors = []

    def error():
        errors.append(np.square(student.network()(x) - other[1]).mean())

    student.learn(own, other, 300, error)
    kept = np.square(student.network()(x) - other[1]).mean()
    assert kept == pytest.approx(min(errors), rel=1e-5)
    assert kept < errors[-1]


def test_a_seed_fixes_everything():
    x, _ = examples(2)
    first, again, other = (learnt(squared_error, epochs=3, seed=seed)(x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01
