import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from entmtp_env.trees.frontier import START, candidates, choose, grow, pareto_hull
from tests.tiny import random_tree


def is_tree(nodes):
    try:
        DraftTree("any", nodes)
    except ValueError:
        return False
    return True


@given(st.integers(0, 2**32), st.integers(0, 6), st.integers(1, 3))
def test_candidates_are_all_nodes_that_leave_a_tree(seed, size, depth):
    tree = random_tree(Random(seed), size, depth=depth, ranks=8)
    everything = [node for d in range(1, depth + 1) for node in itertools.product(range(size + 1), repeat=d)]
    expected = [node for node in everything if node not in tree.rows and is_tree((*tree.nodes, node))]
    assert candidates(tree, depth) == expected


def test_the_first_candidates():
    assert candidates(AUTOREGRESSIVE, 4) == [(0,)]
    assert candidates(START, 4) == [(1,), (0, 0)]
    assert candidates(START, 1) == [(1,)]


def test_the_highest_score_wins_whatever_the_ranks():
    assert choose({(0, 0): 4, (3,): 5, (1,): 4}) == (3,)


def test_ties_go_to_the_smaller_rank_sum_then_the_shallower_then_the_first():
    assert choose({(2,): 1, (0, 0, 1): 1}) == (0, 0, 1)
    assert choose({(0, 0, 1): 1, (0, 1): 1, (2,): 1}) == (0, 1)
    assert choose({(1, 0, 0): 1, (0, 1, 0): 1, (0, 0, 1): 1}) == (0, 0, 1)


def test_growing_adds_the_node_and_names_the_size():
    tree = grow(START, (0, 0))
    assert (tree.name, tree.nodes) == ("greedy-2", ((0,), (0, 0)))
    assert grow(tree, (1,)).nodes == ((0,), (1,), (0, 0))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=9))
def test_the_hull_is_what_no_other_point_dominates(points):
    def dominated(i):
        size, value = points[i]
        return any(
            s <= size and v >= value and ((s, v) != (size, value) or j < i)
            for j, (s, v) in enumerate(points)
            if j != i
        )

    expected = sorted((i for i in range(len(points)) if not dominated(i)), key=lambda i: points[i][0])
    assert pareto_hull([s for s, _ in points], [v for _, v in points]) == expected
