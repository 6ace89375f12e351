import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import DraftTree, TopologyBank, default_bank

CONTEXTS = np.array([64, 256, 512, 1024])
NUMBERS = {"base": 0.02, "node": 0.0015, "depth": 0.0005, "context": 5e-6, "attention": 1e-6, "free": 4.0}


def by_hand(tree, length, base, node=0, depth=0, context=0, attention=0, free=0):
    nodes = len(tree)
    return base + node * max(nodes - free, 0) + depth * tree.depth + length * (context + attention * nodes)


def table_of(bank, contexts, seconds):
    return CostTable(
        name="made",
        trees=bank.trees,
        contexts=np.array(contexts),
        **dict.fromkeys(("seconds", "lower", "upper", "draft_seconds", "verify_seconds"), seconds),
        prefill_seconds=np.ones(len(contexts)),
        manifest={},
    )


def table_by_hand(bank, contexts, **numbers):
    seconds = [[by_hand(tree, length, **numbers) for length in contexts] for tree in bank]
    return table_of(bank, contexts, np.array(seconds))


def test_the_formula():
    bank = default_bank()
    costs = AnalyticCosts(**NUMBERS).at(bank, CONTEXTS)
    assert costs.seconds.shape == (len(bank), len(CONTEXTS))
    for k, n in itertools.product(range(len(bank)), range(len(CONTEXTS))):
        assert costs.seconds[k, n] == pytest.approx(by_hand(bank[k], CONTEXTS[n], **NUMBERS))
        assert costs.draft_seconds[k, n] == pytest.approx(0.0005 * bank[k].depth)
    np.testing.assert_allclose(costs.draft_seconds + costs.verify_seconds, costs.seconds)


def test_a_prefill_is_one_pass_in_which_each_token_sees_those_before():
    prefill = AnalyticCosts(**NUMBERS).at(default_bank(), np.array([1, 5, 6, 101])).prefill_seconds
    np.testing.assert_allclose(
        prefill, [0.02, 0.02, 0.0215, 0.02 + 0.0015 * 96 + 1e-6 * 101**2 / 2], rtol=1e-3
    )


@pytest.mark.parametrize(
    "zero", [(), ("node", "free"), ("depth",), ("context",), ("attention",), ("free", "depth", "attention")]
)
def test_a_fit_recovers_the_numbers(zero):
    numbers = NUMBERS | dict.fromkeys(zero, 0.0)
    table = table_by_hand(default_bank(), CONTEXTS, **numbers)
    fit = AnalyticCosts.fit(table)
    assert [fit.base, fit.node, fit.depth, fit.context, fit.attention, fit.free] == pytest.approx(
        [*numbers.values()], rel=1e-6, abs=1e-11
    )
    np.testing.assert_allclose(fit.relative_errors(table), 0, atol=1e-9)


def test_a_fit_to_one_context_length_does_not_depend_on_it():
    table = table_by_hand(default_bank(), [300], **NUMBERS)
    fit = AnalyticCosts.fit(table)
    assert (fit.context, fit.attention) == (0, 0)
    assert abs(fit.relative_errors(table)).max() < 0.05


def test_a_fit_to_the_empty_tree_alone():
    fit = AnalyticCosts.fit(table_by_hand(TopologyBank([]), [100, 200], base=0.01, context=1e-5))
    assert [fit.base, fit.context] == pytest.approx([0.01, 1e-5])


@settings(max_examples=25)
@given(st.lists(st.floats(0.7, 1), min_size=24, max_size=24))
def test_a_fit_is_that_of_non_negative_least_squares(seconds):
    paths = ((0,), (1,), (2,), (3,), (0, 0))
    bank = TopologyBank([DraftTree.chain(3), *(DraftTree(f"wide-{n}", paths[:n]) for n in (1, 2, 3, 5))])
    table = table_of(bank, [10, 20, 40, 80], np.array(seconds).reshape(6, 4))
    residuals = []
    for free in range(5):
        units = [
            {"base": 1}, {"base": 0, "node": 1}, {"base": 0, "depth": 1}, {"base": 0, "context": 1},
            {"base": 0, "attention": 1},
        ]  # fmt: skip
        columns = [
            [by_hand(tree, n, **unit, free=free) for tree in bank for n in table.contexts] for unit in units
        ]
        matrix = np.array(columns).T / table.seconds.reshape(-1, 1)
        residuals.append(nnls(matrix, np.ones(24))[1])
    fit = AnalyticCosts.fit(table)
    assert np.sqrt((fit.relative_errors(table) ** 2).sum()) == pytest.approx(min(residuals), abs=2e-6)


def test_relative_errors_are_of_the_measured_seconds():
    table = table_of(TopologyBank([]), [10, 20], np.array([[2.0, 4.0]]))
    np.testing.assert_allclose(AnalyticCosts(base=3.0).relative_errors(table), [[0.5, -0.25]])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"base": 0.0}, "base must be a positive number, got 0.0"),
        ({"base": "much"}, "base must be a positive number, got 'much'"),
        ({"base": True}, "base"),
        ({"base": 1.0, "node": -1e-3}, "node must be a number >= 0, got -0.001"),
        ({"base": 1.0, "depth": float("nan")}, "depth"),
        ({"base": 1.0, "free": float("inf")}, "free"),
    ],
)
def test_numbers_that_make_no_time_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        AnalyticCosts(**numbers)
