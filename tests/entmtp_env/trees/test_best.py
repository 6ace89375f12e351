import itertools

import numpy as np
import pytest

from entmtp_env.trees import DraftTree
from entmtp_env.trees.best import best_trees, best_trees_by_depth, node_values
from entmtp_env.trees.walk import accept_lengths


def random_ranks(seed, positions=60, depth=3, worst=4):
    return np.random.default_rng(seed).integers(-1, worst, (positions, depth)).astype(np.int32)


def all_trees(size, depth):
    """Every tree of ``size`` nodes, by growing each smaller one by each node that it may have."""
    trees = {()}
    for _ in range(size):
        grown = set()
        for nodes in trees:
            for parent in [(), *nodes]:
                if len(parent) < depth:
                    rank = sum(node[:-1] == parent and bool(node) for node in nodes)
                    grown.add(tuple(sorted((*nodes, (*parent, rank)))))
        trees = grown
    return [DraftTree("any", nodes) for nodes in trees]


@pytest.mark.parametrize("seed", range(6))
def test_no_tree_of_the_size_accepts_more(seed):
    """Also where a higher rank is right more often than a lower one, which a greedy choice gets wrong."""
    ranks = random_ranks(seed)
    for size, best in zip(range(1, 6), best_trees(ranks, range(1, 6)), strict=True):
        most = max(accept_lengths(tree, ranks).mean() for tree in all_trees(size, 3))
        assert len(best) == size
        assert accept_lengths(best, ranks).mean() == pytest.approx(most)


def test_a_likely_high_rank_is_worth_its_unlikely_siblings():
    ranks = np.array([[2, 0]] * 9 + [[0, 0]], dtype=np.int32)
    one, three, four = best_trees(ranks, (1, 3, 4))
    assert one.nodes == ((0,),)
    assert three.nodes == ((0,), (1,), (2,))
    assert four.nodes == ((0,), (1,), (2,), (2, 0))
    assert [tree.name for tree in (one, three, four)] == ["best-1", "best-3", "best-4"]


def test_the_expected_accept_length_is_the_sum_of_the_values():
    ranks = random_ranks(9, positions=200)
    values = node_values(ranks, 32)
    for tree in best_trees(ranks, (8, 16, 32)):
        assert accept_lengths(tree, ranks).mean() == pytest.approx(sum(values[node] for node in tree.nodes))


def test_values_are_counted_shares_and_close_under_parents_and_siblings():
    ranks = random_ranks(3)
    values = node_values(ranks, 8)
    rows = list(map(tuple, ranks.tolist()))
    for depth in (1, 2, 3):
        for path in itertools.product(range(4), repeat=depth):
            share = sum(row[:depth] == path for row in rows) / len(rows)
            if sum(path) + depth <= 8:
                assert values.get(path, 0) == pytest.approx(share)
    for node in values:
        assert len(node) == 1 or node[:-1] in values
        assert node[-1] == 0 or (*node[:-1], node[-1] - 1) in values


def test_where_fewer_nodes_occur_the_tree_has_fewer():
    tree, none = best_trees(np.array([[0, 0], [0, -1]], dtype=np.int32), (8, 0))
    assert tree.nodes == ((0,), (0, 0))
    assert none.nodes == ()


def test_of_equal_trees_the_shallower_is_taken():
    ranks = np.array([[0, 0], [1, 5]], dtype=np.int32)
    assert best_trees(ranks, (2,))[0].nodes == ((0,), (1,))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("node", "depth"), [(0.0, 0.0), (0.05, 0.0), (0.02, 0.3), (0.3, 0.05)])
def test_no_small_tree_has_more_expected_tokens_per_second(seed, node, depth):
    """Against all trees, for costs under which deep, shallow, large and small trees win."""
    ranks = random_ranks(seed)

    def rate(tree):
        return (1 + accept_lengths(tree, ranks).mean()) / (1 + node * len(tree) + depth * tree.depth)

    found = best_trees_by_depth(ranks, range(1, 6))
    most = 0.0
    for size in range(1, 6):
        most = max(most, *map(rate, all_trees(size, 3)))
        assert max(rate(tree) for tree in found if len(tree) <= size) == pytest.approx(most)


def test_trees_of_each_depth_are_different_ones_of_the_sizes_asked_for():
    found = best_trees_by_depth(random_ranks(1), (1, 3, 5))
    assert all(tree.name == f"optimal-{len(tree)}x{tree.depth}" for tree in found)
    assert {len(tree) for tree in found} == {1, 3, 5}
    assert len({tree.nodes for tree in found}) == len(found)
    assert [tree.depth for tree in found] == sorted(tree.depth for tree in found)
    assert best_trees_by_depth(np.array([[0, -1]], dtype=np.int32), (1, 9)) == [
        DraftTree("optimal-1x1", ((0,),))
    ]
