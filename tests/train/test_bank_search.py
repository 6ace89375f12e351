import itertools

import numpy as np
import pytest
from rich.progress import Progress

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank
from tests.recordings import random_recording
from train.bank_search import BankSearch, exchange, fastest, greedy

COSTS = "analytic:base=0.02,node=0.003,depth=0.001,context=0.0001"
TREES = (
    DraftTree.chain(1),
    DraftTree.chain(2),
    AUTOREGRESSIVE,
    DraftTree.chain(3),
    DraftTree("wide", ((0,), (1,), (2,))),
    DraftTree("fork", ((0,), (1,), (0, 0), (1, 0))),
    DraftTree("bushy", ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))),
)
EMPTY = 2
BAR = Progress(disable=True)


@pytest.fixture(params=range(4))
def case(request):
    """A random recording with a cap below its texts' lengths, its search, and the oracle of any subset."""
    recording = random_recording(np.random.default_rng(request.param), texts=5, longest=30, cap=30)
    cap = 30 if request.param % 2 else 20

    def solved(subset):
        bank = TopologyBank([TREES[tree] for tree in subset])
        return solve(ReplayTables.build(recording, load_costs(COSTS), bank, cap))

    tables = ReplayTables.build(recording, load_costs(COSTS), TopologyBank(TREES), cap)
    return BankSearch(tables), solved


def test_the_time_with_any_trees_is_that_of_their_oracle(case):
    search, solved = case
    assert search.empty == EMPTY
    for size in range(1, 4):
        for others in itertools.combinations({*range(len(TREES))} - {EMPTY}, size):
            kept = (EMPTY, *others)
            np.testing.assert_allclose(search.oracle(kept), solved(kept).seconds)
    with_each = search.seconds((EMPTY, 0))
    for tree in range(len(TREES)):
        np.testing.assert_allclose(with_each[tree], solved(dict.fromkeys((EMPTY, 0, tree))).seconds)
    np.testing.assert_array_equal(search.seconds((EMPTY, 0), [5, 3]), with_each[[5, 3]])


def test_with_nothing_kept_each_tree_is_alone(case):
    search, solved = case
    np.testing.assert_allclose(search.seconds(()), solved(range(len(TREES))).static_seconds)


def test_greedy_adds_the_tree_that_helps_most(case):
    search, solved = case
    kept = [EMPTY]
    while len(kept) < 4:
        times = {tree: solved([*kept, tree]).seconds.sum() for tree in range(len(TREES)) if tree not in kept}
        kept.append(min(times, key=times.get))
    assert greedy(search, 3, BAR) == kept
    assert set(greedy(search, 3, BAR, among=kept[::-1])) == set(kept)


def test_greedy_stops_when_no_tree_helps(case):
    search, solved = case
    kept = greedy(search, 50, BAR)
    assert len(set(kept)) == len(kept) <= len(TREES)
    assert solved(kept).seconds.sum() == pytest.approx(solved(range(len(TREES))).seconds.sum())
    for tree in kept[1:]:
        before = kept[: kept.index(tree)]
        assert solved([*before, tree]).seconds.sum() < solved(before).seconds.sum()


@pytest.mark.parametrize("start", [(EMPTY, 0), (EMPTY, 1, 4), (EMPTY, 0, 1, 4)])
def test_after_the_exchanges_none_helps(case, start):
    search, solved = case
    kept = exchange(search, start, BAR)
    assert kept[0] == EMPTY
    assert len(set(kept)) == len(kept) == len(start)
    least = solved(kept).seconds.sum()
    assert least <= solved(start).seconds.sum() * (1 + 1e-12)
    for out, new in itertools.product(kept[1:], range(len(TREES))):
        others = dict.fromkeys([*(tree for tree in kept if tree != out), new])
        assert solved(others).seconds.sum() >= least * (1 - 1e-9)


def test_there_is_nothing_to_exchange_in_a_bank_of_the_empty_tree(case):
    search, _ = case
    assert exchange(search, [EMPTY], BAR) == [EMPTY]


def test_the_fastest_trees_are_those_of_the_least_time_alone(case):
    search, solved = case
    alone = solved(range(len(TREES))).static_seconds.sum(axis=1)
    order = [tree for tree in np.argsort(alone) if tree != EMPTY]
    assert fastest(search, 3) == [EMPTY, *order[:3]]
    assert len(fastest(search, 50)) == len(TREES)
