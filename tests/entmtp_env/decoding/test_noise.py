import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from entmtp_env.decoding.noise import gumbel_noise

SEEDS, POSITIONS = st.integers(0, 2**64 - 1), st.integers(0, 2**20)


@settings(deadline=None)
@given(SEEDS, POSITIONS, st.integers(1, 50))
def test_is_a_pure_function_of_seed_and_position(seed, position, size):
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global stream must not matter
    noise = gumbel_noise(seed, position, size)
    assert noise.dtype == np.float32
    assert noise.shape == (size,)
    assert np.array_equal(noise, gumbel_noise(seed, position, size))
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


@settings(deadline=None)
@given(SEEDS, POSITIONS, st.integers(1, 50))
def test_a_larger_vocabulary_extends_the_noise(seed, position, size):
    assert np.array_equal(gumbel_noise(seed, position, size + 7)[:size], gumbel_noise(seed, position, size))


@settings(deadline=None)
@given(SEEDS, POSITIONS, POSITIONS)
def test_positions_share_no_values(seed, first, second):
    overlap = np.intersect1d(gumbel_noise(seed, first, 64), gumbel_noise(seed, second, 64))
    assert len(overlap) <= 2 or first == second


def test_seeds_differ():
    assert not np.array_equal(gumbel_noise(0, 5, 8), gumbel_noise(1, 5, 8))


def test_moments_and_distribution_are_gumbel():
    noise = np.concatenate([gumbel_noise(7, position, 1000) for position in range(100)]).astype(float)
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 0.01


def test_positions_are_uncorrelated():
    series = np.array([gumbel_noise(3, position, 500) for position in range(200)], dtype=float)
    lag_one = np.corrcoef(series[:-1].ravel(), series[1:].ravel())[0, 1]
    assert abs(lag_one) < 4 / np.sqrt(series[1:].size)


def test_values_are_fixed_across_platforms():
    """Recordings rest on them."""
    expected = [-1.3567283, -0.26958999, -0.057590455, 1.5692226]
    np.testing.assert_allclose(gumbel_noise(1, 2, 4), expected, rtol=1e-6)
