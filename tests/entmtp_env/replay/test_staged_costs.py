import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.costs import InterpolatedCosts, load_costs
from entmtp_env.replay.staged_costs import as_bank, staged_costs, staged_prices
from entmtp_env.trees import DraftTree, TopologyBank
from tests.recordings import COSTS, seconds
from tests.staged import STAGES, measured_costs


def test_a_step_costs_what_a_tree_of_its_size_and_depth_costs():
    costs = staged_costs(load_costs(COSTS), STAGES, np.arange(50))
    tree = DraftTree("t", ((0,), (1,), (0, 0), (0, 1)))
    decisions = costs.drafted_seconds[2, 30] + costs.verify_seconds[STAGES.budgets.index(4), 30]
    assert decisions == pytest.approx(seconds(tree, 30))
    assert costs.verify_seconds[0, 7] == pytest.approx(seconds(DraftTree("root"), 7))
    assert costs.verify_seconds.shape == (6, 50)
    assert costs.draft_seconds.shape == (3, 50)
    np.testing.assert_allclose(costs.draft_seconds, 0.001)
    np.testing.assert_allclose(costs.drafted_seconds[:, 9], [0, 0.001, 0.002, 0.003])
    assert costs.prefill_seconds[1] == pytest.approx(0.02)


def test_measured_costs_are_kept_by_depth_and_by_size(tmp_path):
    path = measured_costs(tmp_path, seed=3)
    table = load_costs(path)
    costs = staged_costs(staged_prices(table), STAGES, table.contexts)
    drafts = {tree.depth: draft for tree, draft in zip(table.trees, table.draft_seconds, strict=True)}
    for depth in range(3):
        np.testing.assert_allclose(costs.draft_seconds[depth], drafts[depth + 1] - drafts[depth])
    for tree, whole, draft in zip(table.trees, table.seconds, table.draft_seconds, strict=True):
        if len(tree) in STAGES.budgets:
            own = costs.verify_seconds[STAGES.budgets.index(len(tree))]
            np.testing.assert_allclose(own, whole - draft)
    np.testing.assert_allclose(costs.prefill_seconds, table.prefill_seconds)


def test_a_draft_takes_no_less_than_a_shorter_one(tmp_path):
    table = load_costs(measured_costs(tmp_path))
    draft = table.draft_seconds.copy()
    draft[[tree.depth == 3 for tree in table.trees]] = 1e-6
    costs = staged_costs(staged_prices(dataclasses.replace(table, draft_seconds=draft)), STAGES, np.arange(9))
    assert (costs.draft_seconds[2] == 0).all()
    assert (costs.draft_seconds[:2] > 0).all()


def test_tables_are_interpolated_and_all_else_is_taken_as_it_is():
    table = load_costs("auto")
    prices = staged_prices(table)
    assert isinstance(prices, InterpolatedCosts)
    assert prices.table is table
    for costs in (load_costs(COSTS), load_costs("interpolated:auto")):
        assert staged_prices(costs) is costs


def test_costs_measured_with_a_probe_are_refused_however_they_are_named(tmp_path):
    table = load_costs("auto")
    dataclasses.replace(table, manifest={**table.manifest, "probe": "chain"}).save(tmp_path / "chain.json")
    fit = f"analytic:{tmp_path}/chain.json"
    for spec in (
        f"{tmp_path}/chain.json",
        f"interpolated:{tmp_path}/chain.json",
        fit,
        f"{fit},depth=0.5",
        load_costs(fit).name,
    ):
        with pytest.raises(ValueError, match="measured with probe='chain', and in stages nothing is probed"):
            staged_prices(load_costs(spec))


def test_the_bank_has_a_tree_of_each_size():
    bank = as_bank(STAGES)
    assert isinstance(bank, TopologyBank)
    assert [len(tree) for tree in bank] == [*STAGES.budgets]
