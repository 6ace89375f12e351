import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.staged_features import (
    StagedFeatures,
    StagedTracker,
    budget_features,
    depth_features,
    observe_draft,
)
from entmtp_env.tracker import Signals
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


@given(VALUES)
def test_a_live_draft_is_described_as_recorded_ones_are(values):
    values = [*values, *[0.0] * STAGES.shape.widths[0]][: STAGES.shape.widths[0]]
    table, tracker = NodeTable(STAGES), StagedTracker(StagedFeatures(STAGES, "position"), STAGES)
    tracker.reset(Signals(0.5, 0.5, [], [], 0, math.nan, 0.0, 0.0, 0, [0.0] * 5))
    table.add(values, [0])
    observe_draft(tracker, table)
    names = StagedFeatures(STAGES, "position").names
    seen = dict(zip(names, tracker.observe(), strict=True))
    level, best = np.array(table.level), np.array(table.descending)
    kinds = [f"depth_1_{kind}" for kind in ("value_1", "value_2", "value_3", "sum", "entropy")]
    np.testing.assert_allclose([seen[kind] for kind in kinds], depth_features(level), rtol=1e-5, atol=1e-6)
    sums = [seen[f"budget_{budget}_value"] for budget in STAGES.budgets[1:]]
    np.testing.assert_allclose(sums, np.minimum(budget_features(STAGES, best), STAGES.depth), rtol=1e-5)
