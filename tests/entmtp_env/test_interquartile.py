import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from entmtp_env.interquartile import interquartile_mean

NUMBERS = st.floats(-1e3, 1e3)


def test_of_eight_the_middle_four_count():
    assert interquartile_mean(range(1, 9)) == (3 + 4 + 5 + 6) / 4


@given(st.lists(NUMBERS, min_size=1, max_size=30))
def test_the_mean_of_the_middle_half_is_scipys(scores):
    assert interquartile_mean(scores) == pytest.approx(trim_mean(scores, 0.25), abs=1e-9)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 4)), min_size=1, max_size=12))
def test_scores_that_were_drawn_often_count_often(drawn):
    scores, counts = map(list, zip(*drawn, (0.0, 1), strict=True))
    expected = trim_mean(np.repeat(scores, counts), 0.25)
    both = interquartile_mean(scores, [counts, np.ones(len(counts))])
    assert both == pytest.approx([expected, trim_mean(scores, 0.25)], abs=1e-9)


def test_outliers_do_not_count():
    assert interquartile_mean([[1, 2, 3, 1e9], [-1e9, 2, 3, 4]]) == 2.5


def test_of_nothing_there_is_no_mean():
    with pytest.raises(ValueError, match="at least one score"):
        interquartile_mean([])
