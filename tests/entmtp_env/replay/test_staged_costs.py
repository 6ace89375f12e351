import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.costs import AnalyticCosts, load_costs
from entmtp_env.replay.staged_costs import as_bank, staged_costs, staged_formula
from entmtp_env.trees import DraftTree, TopologyBank
from tests.recordings import COSTS, seconds
from tests.staged import STAGES


def test_a_step_costs_what_a_tree_of_its_size_and_depth_costs():
    costs = staged_costs(load_costs(COSTS), STAGES, np.arange(50))
    tree = DraftTree("t", ((0,), (1,), (0, 0), (0, 1)))
    decisions = 2 * costs.draft_seconds + costs.verify_seconds[STAGES.budgets.index(4), 30]
    assert decisions == pytest.approx(seconds(tree, 30))
    assert costs.verify_seconds[0, 7] == pytest.approx(seconds(DraftTree("root"), 7))
    assert costs.verify_seconds.shape == (6, 50)
    assert costs.prefill_seconds[1] == pytest.approx(0.02)


def test_measured_costs_are_fitted():
    table = load_costs("auto")
    assert staged_formula(table) == AnalyticCosts.fit(table) == load_costs("analytic:auto")
    formula = load_costs(COSTS)
    assert staged_formula(formula) is formula


def test_costs_measured_with_a_probe_are_refused_however_they_are_named(tmp_path):
    table = load_costs("auto")
    dataclasses.replace(table, manifest={**table.manifest, "probe": "chain"}).save(tmp_path / "chain.json")
    fit = f"analytic:{tmp_path}/chain.json"
    for spec in (f"{tmp_path}/chain.json", fit, f"{fit},depth=0.5", load_costs(fit).name):
        with pytest.raises(ValueError, match="measured with probe='chain', and in stages nothing is probed"):
            staged_formula(load_costs(spec))


def test_the_bank_has_a_tree_of_each_size():
    bank = as_bank(STAGES)
    assert isinstance(bank, TopologyBank)
    assert [len(tree) for tree in bank] == [*STAGES.budgets]
