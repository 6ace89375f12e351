import itertools

import numpy as np
import pytest

from eval.statistics import Ratio, summarise, throughput_ratio


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
    with pytest.raises(ValueError, match="one length"):
        throughput_ratio(*columns)


@pytest.fixture
def two(episode):
    """Autoregressive decoding, and a policy "p" that is twice as fast without policy time and prefill."""
    plain = [episode(q, *[(0, 1, 0.1)] * 6, prefill=0.6, text=q) for q in ("a", "b")]
    steps = {"a": [(1, 3, 0.1), (2, 3, 0.2)], "b": [(1, 2, 0.1), (1, 2, 0.1), (2, 2, 0.1)]}
    fast = [
        episode(q, *steps[q], policy_seconds=0.02, prefill=0.6, text="a" if q == "a" else "other")
        for q in "ab"
    ]
    return {"autoregressive": plain, "p": fast}


def test_a_summary_in_closed_form(two):
    plain, fast = summarise(two, "p", samples=50)
    assert (fast.policy, fast.prompts, fast.tokens, fast.steps) == ("p", 2, 12, 5)
    assert fast.seconds == pytest.approx(0.6 + 5 * 0.02)
    assert fast.tokens_per_second == pytest.approx(12 / 0.7)
    assert fast.tokens_per_second_with_prefill == pytest.approx(12 / 1.9)
    assert fast.tau == pytest.approx(12 / 5)
    assert fast.rho.value == pytest.approx((12 / 0.7) / (12 / 1.2))
    assert fast.rho_with_prefill.value == pytest.approx((12 / 1.9) / (12 / 2.4))
    assert plain.versus_baseline.value == pytest.approx(0.7 / 1.2)
    assert (plain.rho, fast.versus_baseline) == (Ratio(1, 1, 1), Ratio(1, 1, 1))
    assert fast.switch_rate == pytest.approx(2 / 3)
    assert fast.policy_microseconds == pytest.approx(20_000)
    assert fast.policy_share == pytest.approx(0.1 / 0.7)
    assert fast.draft_share == pytest.approx(0.25 * 0.6 / 0.7)
    assert fast.verify_share == pytest.approx(0.5 * 0.6 / 0.7)
    assert (plain.same_texts, fast.same_texts) == (2, 1)
    assert fast.trees == {"tree1": 3, "tree2": 2}


def test_texts_of_one_step_never_switch(episode):
    (only,) = summarise({"autoregressive": [episode("a", (0, 1, 0.1))]}, "autoregressive")
    assert only.switch_rate == 0


def test_other_prompts_are_refused(two):
    with pytest.raises(ValueError, match="'p' and 'autoregressive' ran different prompts"):
        summarise(two | {"p": two["p"][::-1]}, "p")
    with pytest.raises(ValueError, match="different prompts"):
        summarise(two | {"p": two["p"][:1]}, "p")


@pytest.mark.parametrize("missing", ["autoregressive", "p"])
def test_what_is_divided_by_must_be_there(two, missing):
    del two[missing]
    with pytest.raises(ValueError, match=f"no episodes of {missing}"):
        summarise(two, "p")
