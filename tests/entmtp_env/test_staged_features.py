import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.staged_features import StagedFeatures, budget_features, depth_features
from tests.staged import STAGES

VALUES = st.lists(st.just(0.0) | st.floats(1e-6, 1), min_size=1, max_size=9)


def test_names_and_bounds():
    features = StagedFeatures(STAGES, "base,position")
    assert features.names == (
        *("base_top1", "base_entropy", "generated_fraction", "context_fraction", "last_tree", "stage"),
        *(f"depth_{d}_{k}" for d in (1, 2, 3) for k in ("value_1", "value_2", "value_3", "sum", "entropy")),
        *(f"budget_{n}_value" for n in (1, 2, 4, 8, 12)),
    )
    assert features.low.tolist() == [0] * 26
    assert features.high.tolist() == [1] * 21 + [3] * 5


def test_groups_that_are_not_there():
    assert "accept_last" in StagedFeatures(STAGES).names
    assert StagedFeatures(STAGES).fingerprint != StagedFeatures(STAGES, ["base"]).fingerprint
    with pytest.raises(ValueError, match="no feature groups heads, trees; choose 'all' or some of base"):
        StagedFeatures(STAGES, "base,trees,heads")


@given(VALUES)
def test_features_of_a_depth(values):
    *top, total, entropy = depth_features(np.array(values)).tolist()
    expected = sorted(values, reverse=True)[:3]
    assert top == pytest.approx([*expected, 0, 0][:3])
    assert total == pytest.approx(min(1, sum(values)), abs=1e-6)
    shares = [value / sum(values) for value in values if value]
    reference = -sum(share * math.log(share) for share in shares) / math.log(max(2, len(values)))
    assert entropy == pytest.approx(reference, abs=1e-5)
    assert -1e-6 <= entropy <= 1 + 1e-6


@given(VALUES)
def test_features_of_the_budgets(values):
    descending = sorted(values, reverse=True)
    expected = [sum(descending[:n]) for n in STAGES.budgets[1:]]
    np.testing.assert_allclose(budget_features(STAGES, np.array(descending)), expected, rtol=1e-5)


def test_many_side_by_side_are_like_each_alone():
    values = -np.sort(-np.random.default_rng(0).random((5, 7)), axis=1)
    np.testing.assert_array_equal(depth_features(values), [depth_features(row) for row in values])
    np.testing.assert_array_equal(
        budget_features(STAGES, values), [budget_features(STAGES, row) for row in values]
    )
