import itertools

import numpy as np
import pytest
from scipy.stats import bootstrap, trim_mean

from train.interquartile import over_seeds


def test_the_interval_is_that_of_all_draws():
    scores = np.random.default_rng(0).normal(size=(3, 2))
    # Of each text, on its own, every draw of three seeds.
    draws = list(itertools.product(range(3), repeat=3))
    every = np.array(
        [
            trim_mean(np.concatenate((scores[list(a), 0], scores[list(b), 1])), 0.25)
            for a, b in itertools.product(draws, draws)
        ]
    )
    interval = over_seeds(scores, samples=20_000)
    assert interval.value == pytest.approx(trim_mean(scores.ravel(), 0.25))
    assert np.mean(every < interval.low) <= 0.026
    assert np.mean(every <= interval.low + 1e-9) >= 0.024
    assert np.mean(every > interval.high) <= 0.026
    assert np.mean(every >= interval.high - 1e-9) >= 0.024


def test_with_one_text_it_is_the_plain_bootstrap_over_seeds():
    scores = np.random.default_rng(1).normal(size=(20, 1))
    interval = over_seeds(scores, samples=10_000)
    plain = bootstrap(
        (scores[:, 0],),
        lambda x, axis: trim_mean(x, 0.25, axis=axis),
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert interval.low == pytest.approx(plain.low, abs=0.03)
    assert interval.high == pytest.approx(plain.high, abs=0.03)


def test_texts_that_differ_do_not_widen_it_and_seeds_that_differ_do():
    texts = np.random.default_rng(3).lognormal(size=40)
    same = over_seeds(np.tile(texts, (4, 1)))
    assert same.low == pytest.approx(same.value)
    assert same.high == pytest.approx(same.value)
    seeds = over_seeds(texts * np.array([0.9, 1.0, 1.0, 1.1])[:, None])
    assert seeds.low < seeds.value < seeds.high


def test_one_seed_has_no_interval():
    assert over_seeds([[1.0, 2.0, 3.0]]) == (2.0, None, None)


@pytest.mark.parametrize("scores", [[], [1.0], np.zeros((0, 2)), np.zeros((2, 0))])
def test_other_shapes_are_refused(scores):
    with pytest.raises(ValueError, match=r"must be \(seeds, texts\)"):
        over_seeds(scores)
