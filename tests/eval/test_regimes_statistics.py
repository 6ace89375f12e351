import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, pearsonr

from eval.regimes_statistics import auroc, draw_weights, estimate, pearson

ONCE = np.ones((1, 5))


@pytest.fixture
def steps():
    """60 steps of 5 generations: generations, two features, accepted drafts."""
    rng = np.random.default_rng(0)
    return rng.integers(5, size=60), rng.random((60, 2)), rng.integers(4, size=60)


def copies(generations, weights):
    """Steps as often as their generation counts, and which copy of it each is of."""
    rows = [np.flatnonzero(generations == g) for g in range(len(weights))]
    taken = [(g, c, row) for g, count in enumerate(weights) for c in range(int(count)) for row in rows[g]]
    return np.array([row for *_, row in taken]), [copy for *copy, _ in taken]


def test_pearson_is_scipys_and_a_resample_is_that_of_the_copied_steps(steps):
    generations, features, target = steps
    weights = draw_weights(5, samples=20, seed=0)
    r = pearson(features, target, generations, weights)
    for own, counts in zip(r, weights, strict=True):
        rows, _ = copies(generations, counts)
        assert own == pytest.approx([pearsonr(column, target[rows])[0] for column in features[rows].T])


def test_a_small_variation_on_a_large_value_is_seen_and_none_at_all_is_undefined(steps):
    generations, features, target = steps
    shifted = np.stack([features[:, 0] * 1e-3 + 50, np.full(60, np.float32(0.1)), np.zeros(60)], axis=1)
    r = pearson(shifted, target, generations, ONCE)[0]
    assert r[0] == pytest.approx(pearsonr(features[:, 0], target)[0])
    assert np.isnan(r[1:]).all()
    assert np.isnan(pearson(features, np.full(60, 3), generations, ONCE)).all()


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=30).filter(
        lambda rows: len({positive for *_, positive in rows}) == 2
    )
)
def test_auroc_is_the_rank_statistic(rows):
    generations, scores, positive = (np.array(column) for column in zip(*rows, strict=True))
    u = mannwhitneyu(scores[positive], scores[~positive]).statistic
    (share,) = auroc(scores.astype(float), positive, generations, np.zeros(5, dtype=int), ONCE)
    assert share == pytest.approx(u / (positive.sum() * (~positive).sum()))


def test_auroc_counts_pairs_of_one_fold_and_never_two_copies_of_a_text(steps):
    generations, features, target = steps
    scores, positive, folds = features[:, 0].round(1), target == 0, np.array([0, 1, 0, 1, 1])
    weights = draw_weights(5, samples=20, seed=0)
    shares = auroc(scores, positive, generations, folds, weights)
    for share, counts in zip(shares, weights, strict=True):
        rows, copy = copies(generations, counts)
        won = [
            (scores[a] > scores[b]) + (scores[a] == scores[b]) / 2
            for (a, (g, i)), (b, (h, j)) in itertools.product(zip(rows, copy, strict=True), repeat=2)
            if positive[a] and not positive[b] and folds[g] == folds[h] and (g != h or i == j)
        ]
        assert share == pytest.approx(np.mean(won))


def test_weights_are_everyone_once_and_then_draws_of_as_many():
    weights = draw_weights(7, samples=50, seed=3)
    assert weights.shape == (51, 7)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 7).all()
    assert weights[1:].std() == pytest.approx(np.sqrt(6 / 7), abs=0.15)


def test_an_interval_covers_as_often_as_it_says():
    # r of independent columns is 0; generations of one step each make it the textbook bootstrap.
    rng, inside = np.random.default_rng(0), 0
    for _ in range(200):
        x, y = rng.random((40, 1)), rng.integers(5, size=40)
        r = estimate(pearson(x, y, np.arange(40), draw_weights(40, 200, 0))[:, 0])
        inside += r.low <= 0 <= r.high
    assert 175 <= inside <= 199


def test_steps_that_are_copies_of_each_other_do_not_narrow_the_interval():
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 1)), rng.integers(5, size=30)
    weights = draw_weights(30, 300, 0)
    once = estimate(pearson(x, y, np.arange(30), weights)[:, 0])
    often = estimate(pearson(x.repeat(9, 0), y.repeat(9), np.arange(30).repeat(9), weights)[:, 0])
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high))


def test_what_is_undefined_has_no_estimate_and_such_resamples_are_left_out():
    assert estimate(np.array([np.nan, 1.0])) is None
    values = estimate(np.array([0.5, np.nan, 0.25, 0.75]))
    assert (values.value, values.low, values.high) == pytest.approx((0.5, 0.2625, 0.7375))
