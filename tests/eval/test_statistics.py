import itertools

import numpy as np
import pytest
from scipy.stats import trim_mean

from eval.statistics import Ratio, improvement, interquartile_ratio, rate_gap, throughput_ratio


def test_the_value_is_a_ratio_of_sums_not_a_mean_of_ratios():
    ratio = throughput_ratio([10, 30], [1.0, 9.0], [10, 30], [4.0, 4.0])
    assert ratio.value == pytest.approx((40 / 10) / (40 / 8))


def test_a_constant_ratio_has_an_interval_of_no_width():
    draw = np.random.default_rng(0)
    tokens, seconds = draw.integers(1, 200, 25), draw.uniform(0.1, 9, 25)
    ratio = throughput_ratio(tokens, seconds, tokens, 1.5 * seconds)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_interval_is_that_of_all_resamples():
    draw = np.random.default_rng(1)
    n = 5
    tokens, seconds = draw.integers(10, 90, n), draw.uniform(1, 5, n)
    other_tokens, other_seconds = draw.integers(10, 90, n), draw.uniform(1, 5, n)
    every = np.array(
        [
            (tokens[k].sum() / seconds[k].sum()) / (other_tokens[k].sum() / other_seconds[k].sum())
            for k in map(list, itertools.product(range(n), repeat=n))
        ]
    )
    ratio = throughput_ratio(tokens, seconds, other_tokens, other_seconds, samples=100_000)
    assert np.mean(every < ratio.low) == pytest.approx(0.025, abs=0.004)
    assert np.mean(every > ratio.high) == pytest.approx(0.025, abs=0.004)


def test_pairing_removes_what_prompts_have_in_common():
    draw = np.random.default_rng(2)
    tokens = np.full(40, 100)
    difficulty = draw.lognormal(0, 1, 40)
    seconds = difficulty * draw.normal(1, 0.01, 40)
    paired = throughput_ratio(tokens, seconds, tokens, difficulty)
    other = draw.permutation(40)
    mixed = throughput_ratio(tokens, seconds, tokens[other], difficulty[other])
    assert mixed.value == pytest.approx(paired.value)
    assert mixed.high - mixed.low > 20 * (paired.high - paired.low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    draw = np.random.default_rng(3)
    covered = 0
    for trial in range(400):
        difficulty = draw.lognormal(0, 0.5, 40)
        own, other = (difficulty * draw.lognormal(-0.02, 0.2, 40) for _ in range(2))
        ratio = throughput_ratio(np.ones(40), own, np.ones(40), 1.3 * other, samples=400, seed=trial)
        covered += ratio.low <= 1.3 <= ratio.high
    assert 0.90 <= covered / 400 <= 0.98


def test_the_seed_decides():
    draw = np.random.default_rng(4)
    columns = draw.uniform(1, 5, (4, 12))
    assert throughput_ratio(*columns, seed=1) == throughput_ratio(*columns, seed=1)
    assert throughput_ratio(*columns, seed=1) != throughput_ratio(*columns, seed=2)


def test_one_prompt_has_no_interval():
    assert throughput_ratio([8], [2.0], [8], [4.0]) == Ratio(2.0, None, None)


@pytest.mark.parametrize("columns", [([], [], [], []), ([1, 2], [1, 2], [1], [1]), (1, 1, 1, 1)])
def test_unpaired_columns_are_refused(columns):
    for statistic in (throughput_ratio, interquartile_ratio, improvement, rate_gap):
        with pytest.raises(ValueError, match="one length"):
            statistic(*columns)


@pytest.fixture
def columns():
    """Tokens and seconds of two policies on six prompts; on the first, both take the same."""
    draw = np.random.default_rng(5)
    tokens, other_tokens = draw.integers(10, 90, (2, 6)).astype(float)
    seconds, other_seconds = draw.uniform(1, 3, (2, 6))
    other_tokens[0], other_seconds[0] = tokens[0], seconds[0]
    return tokens, seconds, other_tokens, other_seconds


CLOSED_FORMS = {
    interquartile_ratio: lambda a, b, c, d: trim_mean((a / b) / (c / d), 0.25),
    improvement: lambda a, b, c, d: np.mean((a / b > c / d) + 0.5 * (a / b == c / d)),
    rate_gap: lambda a, b, c, d: a.sum() / b.sum() - c.sum() / d.sum(),
}


@pytest.mark.parametrize("statistic", CLOSED_FORMS)
def test_a_statistic_is_its_closed_form_and_its_interval_that_of_all_resamples(statistic, columns):
    if statistic is rate_gap:
        columns = [np.ceil(column) for column in columns]
    closed = CLOSED_FORMS[statistic]
    every = np.array([closed(*(c[list(k)] for c in columns)) for k in itertools.product(range(6), repeat=6)])
    found = statistic(*columns, samples=50_000)
    assert found.value == pytest.approx(closed(*columns))
    assert np.mean(every < found.low - 1e-9) <= 0.03
    assert np.mean(every <= found.low + 1e-9) >= 0.02
    assert np.mean(every > found.high + 1e-9) <= 0.03
    assert np.mean(every >= found.high - 1e-9) >= 0.02


def test_the_interquartile_ratio_is_of_the_middle_half_of_the_prompts():
    ones = np.ones(8)
    assert interquartile_ratio(range(1, 9), ones, ones, ones).value == (3 + 4 + 5 + 6) / 4
    # A long text and a slow one weigh no more than others.
    assert interquartile_ratio([2, 2, 2, 2e6], [1, 1, 1, 1e6], [1, 1, 1, 50], [1, 1, 1, 1]).value == 2
    assert interquartile_ratio([6], [2], [4], [4]) == Ratio(3.0, None, None)


def test_improvement_counts_prompts_and_ties_half():
    ones = np.ones(4)
    assert improvement([2, 1, 3, 0.5], ones, ones, ones).value == (1 + 0.5 + 1 + 0) / 4
    # Not the size of a win.
    assert improvement([9, 0.9, 0.9, 0.9], ones, ones, ones).value == 0.25
    assert improvement(ones, ones, ones, ones) == Ratio(0.5, 0.5, 0.5)
    assert improvement(2 * ones, ones, ones, ones) == Ratio(1, 1, 1)


def test_a_rate_weighs_prompts_by_their_units():
    assert rate_gap([3, 256], [3, 256], [0, 128], [3, 256]).value == pytest.approx(1 - 128 / 259)
    # What a prompt adds to both cancels.
    difficulty = np.random.default_rng(6).lognormal(0, 1, 20)
    shifted = rate_gap(difficulty + 1, np.full(20, 10), difficulty, np.full(20, 10))
    assert (shifted.low, shifted.high) == pytest.approx((0.1, 0.1))
    # Of nothing there is nothing.
    assert rate_gap([0, 0], [0, 0], [1, 0], [2, 0]).value == -0.5
