import dataclasses
import itertools

import numpy as np
import pytest

from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.costs import InterpolatedCosts, load_costs
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, default_bank

CONTEXTS = np.array([10, 50, 90])
DRAFT = np.array([0.0, 4.0, 5.5, 7.0])
"""Seconds of drafting to each depth."""


def star(nodes, name=None):
    return DraftTree(name or f"star-{nodes}", tuple((rank,) for rank in range(nodes)))


def rest(nodes):
    """Kernels that take three rows at a time."""
    return 10.0 * -(-(nodes + 1) // 3)


def table_of(trees, rest_of=rest, draft=DRAFT):
    seconds = [[draft[tree.depth] + rest_of(len(tree)) + 0.01 * n for n in CONTEXTS] for tree in trees]
    drafted = np.array([[draft[tree.depth]] * 3 for tree in trees])
    seconds = np.array(seconds)
    return CostTable(
        name="made",
        trees=tuple(trees),
        contexts=CONTEXTS,
        seconds=seconds,
        lower=seconds,
        upper=seconds,
        draft_seconds=drafted,
        verify_seconds=0.5 * (seconds - drafted),
        prefill_seconds=np.array([1.0, 5.0, 9.0]),
        manifest={"probe": "none"},
    )


MEASURED = (AUTOREGRESSIVE, DraftTree.chain(1), DraftTree.chain(2), DraftTree.chain(3), star(5), star(9))


def test_any_tree_costs_what_its_size_and_its_depth_cost():
    costs = InterpolatedCosts(table_of(MEASURED))
    bank = TopologyBank(
        [
            star(2),
            star(3),
            DraftTree("broom", ((0,), (1,), (2,), (3,), (0, 0))),
            DraftTree("deep", (*((rank,) for rank in range(7)), (0, 0), (0, 0, 0))),
        ]
    )
    lengths = np.array([10, 30, 50, 90])
    priced = costs.at(bank, lengths)
    for k, n in itertools.product(range(len(bank)), range(4)):
        tree = bank[k]
        assert priced.draft_seconds[k, n] == pytest.approx(DRAFT[tree.depth])
        whole = DRAFT[tree.depth] + rest(len(tree)) + 0.01 * lengths[n]
        assert priced.seconds[k, n] == pytest.approx(whole)
        assert priced.verify_seconds[k, n] == pytest.approx((whole - DRAFT[tree.depth]) / 2)
    np.testing.assert_allclose(priced.prefill_seconds, [1, 3, 5, 9])


def test_measured_trees_keep_their_costs_where_each_is_the_only_one_of_its_kind():
    table = table_of([tree for tree in MEASURED if tree.name != "star-9"][:4])
    bank = TopologyBank(table.trees)
    own, measured = (costs.at(bank, np.arange(5, 120)) for costs in (InterpolatedCosts(table), table))
    np.testing.assert_allclose(own.seconds, measured.seconds)
    np.testing.assert_allclose(own.draft_seconds, measured.draft_seconds)


def test_equal_sizes_are_averaged():
    trees = (AUTOREGRESSIVE, DraftTree.chain(2), star(2), DraftTree.chain(3))
    table = table_of(trees)
    noisy = table.seconds * np.array([1, 1.1, 1, 1])[:, None]
    table = dataclasses.replace(table, seconds=noisy, lower=noisy, upper=noisy)
    priced = InterpolatedCosts(table).at(TopologyBank([star(2)]), CONTEXTS)
    expected = DRAFT[1] + ((noisy[1] - DRAFT[2]) + (noisy[2] - DRAFT[1])) / 2
    np.testing.assert_allclose(priced.seconds[1], expected)


def test_between_sizes_and_beyond_them_costs_go_on():
    costs = InterpolatedCosts(table_of((AUTOREGRESSIVE, star(4), star(8)), lambda n: 10.0 + n))
    bank = TopologyBank([star(3), star(8), star(20)])
    expected = [10.1, 13.1 + 4, 18.1 + 4, 30.1 + 4]
    np.testing.assert_allclose(costs.at(bank, CONTEXTS).seconds[:, 0], expected)
    # Noise does not make larger trees cheaper.
    falling = InterpolatedCosts(table_of((AUTOREGRESSIVE, star(4), star(8)), lambda n: 10.0 - n / 4))
    seconds = falling.at(bank, CONTEXTS).seconds[:, 0]
    assert seconds[3] == pytest.approx(seconds[2])


def test_one_tree_is_enough():
    costs = InterpolatedCosts(table_of((star(4),)))
    bank = TopologyBank([star(1), DraftTree.chain(3)])
    seconds = costs.at(bank, CONTEXTS).seconds
    np.testing.assert_allclose(seconds, np.broadcast_to(seconds[:1], seconds.shape))


def test_they_are_loaded_by_name(tmp_path):
    table_of(MEASURED).save(tmp_path / "made.json")
    costs = load_costs(f"interpolated:{tmp_path}/made.json")
    assert isinstance(costs, InterpolatedCosts)
    assert (costs.name, costs.probe, costs.manifest) == ("interpolated:made", "none", {"probe": "none"})
    assert load_costs("interpolated:auto").table.fingerprint == load_costs("auto").fingerprint
    assert np.isfinite(load_costs("interpolated:auto").at(default_bank(), CONTEXTS).seconds).all()
    for spec in ("interpolated:", "interpolated:nowhere", "interpolated:analytic:auto"):
        with pytest.raises(FileNotFoundError, match="interpolated:<one of these>"):
            load_costs(spec)
