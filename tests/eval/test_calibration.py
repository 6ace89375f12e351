import numpy as np
import pytest

from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE, TokenRanks
from eval.calibration import calibration, reliability


def test_bins_hold_equal_numbers_and_the_error_is_their_mean_gap():
    stated = np.array([0.9, 0.1, 0.3, 0.7, 0.5, 0.2])
    right = np.array([True, False, True, True, False, False])
    diagram = reliability(stated, right, bins=3)
    assert diagram.stated == pytest.approx([0.15, 0.4, 0.8])
    assert diagram.observed == pytest.approx([0.0, 0.5, 1.0])
    assert diagram.error == pytest.approx((0.15 + 0.1 + 0.2) / 3)
    assert diagram.count == 6


def test_probabilities_that_come_true_have_no_error():
    draw = np.random.default_rng(0)
    stated = draw.random(100_000)
    assert reliability(stated, draw.random(100_000) < stated).error < 0.01
    assert reliability(stated, draw.random(100_000) < stated**2).error == pytest.approx(1 / 6, abs=0.01)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_predictions_have_few_bins(count):
    diagram = reliability(np.full(count, 0.25), np.ones(count, dtype=bool))
    assert diagram.stated == [0.25] * count
    assert diagram.error == (0.75 if count else 0)


def test_positions_count_where_their_prediction_was_tested():
    ranks = np.array(
        [[0, 0], [0, 3], [NOT_DRAFTABLE, 0], [1, NO_TOKEN], [NO_TOKEN, NO_TOKEN]], dtype=np.int32
    )
    confidence = np.array([[0.9, 0.8], [0.7, 0.6], [0.5, 0.4], [0.3, 0.2], [0.1, 0.1]], dtype=np.float32)
    halves = (slice(2), slice(2, None))
    measured = calibration([TokenRanks(ranks[h], confidence[h], 0 * confidence[h]) for h in halves])
    first, second = measured.confidence
    assert (first.count, second.count) == (4, 2)
    assert first.stated == pytest.approx([0.3, 0.5, 0.7, 0.9])
    assert first.observed == [0, 0, 1, 1]
    # At depth 2, only below a first draft that was right.
    assert second.stated == pytest.approx([0.6, 0.8])
    assert second.observed == [0, 1]
    # The whole chain: products, wherever there are two tokens to predict.
    whole = measured.path_value[1]
    assert whole.stated == pytest.approx([0.2, 0.42, 0.72])
    assert whole.observed == [0, 0, 1]
    assert measured.path_value[0] == first
