import itertools

import numpy as np
import pytest

from entmtp_env.trees import DraftTree
from entmtp_env.trees.walk import accept_lengths
from train.journal import Journal
from train.tree_search import Rollout, TreeRun, search


class Positions:
    """Every row of ranks is a step, whatever the tree: so the search is a known one."""

    depth, count = 3, 1

    def __init__(self, ranks, fail_at=0):
        self.ranks, self.fail_at, self.rollouts, self.ticks = ranks, fail_at, [], 0

    def rollout(self, tree, nodes, tick):
        if len(tree) == self.fail_at:
            raise KeyboardInterrupt
        self.rollouts.append(tree)
        tick()
        accepted = int(accept_lengths(tree, self.ranks).sum())
        with_node = (accept_lengths(DraftTree("", (*tree.nodes, node)), self.ranks).sum() for node in nodes)
        gains = {node: int(total) - accepted for node, total in zip(nodes, with_node, strict=True)}
        return Rollout(len(self.ranks), accepted, gains)


def ranks(seed=0):
    return np.random.default_rng(seed).choice([0, 0, 0, 1, 1, 2, -1], (80, 3)).astype(np.int32)


def test_each_tree_has_the_best_node_more_than_the_last(tmp_path):
    source = Positions(ranks())
    found = search(source, 3, 8, Journal(tmp_path / "j", {}))
    assert [len(own.tree) for own in found] == list(range(1, 9))
    assert [own.tree.name for own in found] == [f"greedy-{n}" for n in range(1, 9)]
    for before, own in itertools.pairwise(found):
        assert set(before.tree.nodes) < set(own.tree.nodes)
        # Its score; and since the steps do not depend on the tree here, what it really accepts.
        assert own.accept_length == accept_lengths(own.tree, source.ranks).mean()
        for other in range(3):
            for parent in ((), *before.tree.nodes):
                node = (*parent, other)
                if len(node) <= 3 and node not in before.tree.rows:
                    try:
                        rival = DraftTree("rival", (*before.tree.nodes, node))
                    except ValueError:
                        continue
                    assert accept_lengths(rival, source.ranks).mean() <= own.accept_length
    assert found[0].accept_length == (source.ranks[:, 0] == 0).mean()
    # One rollout a tree; the first is the first tree's own.
    assert [len(tree) for tree in source.rollouts] == [1, 1, *range(2, 8)]


def test_no_node_is_deeper_than_asked_for(tmp_path):
    found = search(Positions(ranks()), 1, 5, Journal(tmp_path / "j", {}))
    assert found[-1].tree.nodes == ((0,), (1,), (2,), (3,), (4,))


@pytest.mark.parametrize("fail_at", [1, 4])
def test_an_interrupted_search_goes_on_to_the_same_frontier(tmp_path, fail_at):
    whole = search(Positions(ranks()), 3, 7, Journal(tmp_path / "whole", {}))
    with pytest.raises(KeyboardInterrupt):
        search(Positions(ranks(), fail_at), 3, 7, Journal(tmp_path / "parts", {}))
    source = Positions(ranks())
    assert search(source, 3, 7, Journal(tmp_path / "parts", {})) == whole
    assert len(source.rollouts[0]) == fail_at
    assert (tmp_path / "parts").read_text() == (tmp_path / "whole").read_text()


def test_a_larger_budget_goes_on_and_a_smaller_one_reads(tmp_path):
    whole = search(Positions(ranks()), 3, 7, Journal(tmp_path / "whole", {}))
    search(Positions(ranks()), 3, 4, Journal(tmp_path / "parts", {}))
    assert search(Positions(ranks()), 3, 7, Journal(tmp_path / "parts", {})) == whole
    source = Positions(ranks())
    assert search(source, 3, 2, Journal(tmp_path / "parts", {})) == whole[:2]
    assert source.rollouts == []


def test_rates_count_the_prefill():
    run = TreeRun(tokens=30, steps=12, seconds=2.0, prefill_seconds=1.0)
    assert (run.tau, run.rate) == (2.5, 10.0)
