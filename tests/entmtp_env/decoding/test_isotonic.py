import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding.isotonic import Curve, fit_curve, pool_adjacent_violators

SAMPLES = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), min_size=1, max_size=12)


def minimax(values, weights):
    """The isotonic regression by its closed form, max over starts of min over ends of the weighted means."""
    n = len(values)

    def mean(a, b):
        return np.average(values[a : b + 1], weights=weights[a : b + 1])

    return [max(min(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)]


@given(SAMPLES)
def test_pooling_is_the_isotonic_regression(samples):
    values, weights = (np.array(column, dtype=float) for column in zip(*samples, strict=True))
    runs = pool_adjacent_violators(values, weights)
    fitted = [value for count, value in runs for _ in range(count)]
    np.testing.assert_allclose(fitted, minimax(values, weights), atol=1e-12)
    assert (np.diff([value for _, value in runs]) > 0).all()


def test_a_curve_recovers_the_truth_behind_its_samples():
    rng = np.random.default_rng(0)
    claimed = rng.random(100_000)
    curve = fit_curve(claimed, rng.random(100_000) < claimed**2)
    at = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(curve(at), at**2, atol=0.03)
    assert len(curve.inputs) <= 201
    assert (np.diff(curve(np.linspace(0, 1, 1001))) >= 0).all()


def test_a_curve_starts_at_nothing_claimed_nothing_true():
    assert fit_curve(np.array([0.5, 0.7]), np.array([True, True])) == Curve((0.0, 0.6), (0.0, 1.0))


@given(st.permutations([True] * 3 + [False] * 5))
def test_equal_claims_are_pooled_whatever_their_order(true):
    assert fit_curve(np.full(8, 0.25), np.array(true)) == Curve((0.0, 0.25), (0.0, 0.375))


@given(SAMPLES, st.lists(st.floats(-0.5, 1.5), min_size=1))
def test_one_value_is_mapped_as_many_are(samples, values):
    claimed, true = zip(*samples, strict=True)
    curve = fit_curve(np.array(claimed), np.array(true) > 2)
    values = [*values, *curve.inputs]
    assert [curve.at(value) for value in values] == curve(np.array(values)).tolist()


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((), ()),
        ((0.0, 1.0), (0.0,)),
        ((0.0, 0.0), (0.0, 1.0)),
        ((0.0, 1.0), (0.5, 0.4)),
        ((0.0, 1.0), (0.0, 1.1)),
        ((0.0,), (float("nan"),)),
        ((0.0, float("inf")), (0.0, 1.0)),
    ],
)
def test_what_is_no_curve(inputs, outputs):
    with pytest.raises(ValueError, match="curve needs"):
        Curve(inputs, outputs)
