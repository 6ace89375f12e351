import os
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.trees import DraftTree
from tests.tiny import random_tree

TREES = st.builds(random_tree, st.randoms(use_true_random=False), st.integers(0, 40))


def all_paths(tree):
    return [(), *tree.nodes]


@settings(deadline=None)
@given(TREES)
def test_tables_equal_brute_force(tree):
    paths = all_paths(tree)
    assert tree.rows == {path: row for row, path in enumerate(paths)}
    assert tree.depths.tolist() == [len(path) for path in paths]
    assert tree.parents.tolist() == [paths.index(path[:-1]) for path in paths]
    ancestors = [[path[: len(other)] == other for other in paths] for path in paths]
    assert tree.attends.tolist() == ancestors
    assert tree.depth == max(len(path) for path in paths)
    assert tree.max_rank == max((rank for path in paths for rank in path), default=-1)


@settings(deadline=None)
@given(TREES)
def test_levels_are_contiguous_slices(tree):
    starts, paths = tree.level_starts, all_paths(tree)
    levels = [paths[start:end] for start, end in pairwise(starts)]
    assert [path for level in levels for path in level] == paths
    assert [{len(path) for path in level} for level in levels] == [{depth} for depth in range(tree.depth + 1)]


@settings(deadline=None)
@given(TREES)
def test_greedy_depth_counts_the_chain(tree):
    chain = [path for path in tree.nodes if set(path) == {0}]
    assert tree.greedy_depth == len(chain)


@settings(deadline=None)
@given(TREES, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(tree, random):
    shuffled = list(tree.nodes)
    random.shuffle(shuffled)
    again = DraftTree.from_paths("random", [list(path) for path in shuffled])
    assert again == tree
    assert again.fingerprint == tree.fingerprint


@settings(deadline=None)
@given(TREES, TREES)
def test_union_has_the_nodes_of_both(first, second):
    union = first.union(second, "both")
    assert union.name == "both"
    assert set(union.nodes) == {*first.nodes, *second.nodes}


@settings(deadline=None)
@given(TREES, TREES)
def test_the_fingerprint_names_the_topology_and_ignores_names(first, second):
    assert (first.fingerprint == second.fingerprint) == (first.nodes == second.nodes)
    assert DraftTree("other", first.nodes).fingerprint == first.fingerprint


def test_chain():
    assert DraftTree.chain(3) == DraftTree("chain-3", ((0,), (0, 0), (0, 0, 0)))
    assert DraftTree.chain(0, "nothing") == DraftTree("nothing")


def test_the_empty_tree():
    tree = DraftTree("empty")
    assert (len(tree), tree.depth, tree.max_rank, tree.greedy_depth) == (0, 0, -1, 0)
    assert tree.level_starts == (0, 1)
    assert tree.attends.tolist() == [[True]]


def test_numpy_ranks_become_plain_integers():
    tree = DraftTree("numpy", ((np.int64(0),), (np.int64(1),)))
    assert tree == DraftTree("numpy", ((0,), (1,)))
    assert type(tree.nodes[0][0]) is int


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (((0,), (0,)), "lists a node twice"),
        (((),), "not a path of child ranks"),
        (((-1,),), "not a path of child ranks"),
        (((0,), (1, 0)), r"node \(1, 0\) needs its parent \(1,\)"),
        (((0,), (2,)), r"node \(2,\) needs its sibling \(1,\)"),
        (((0,), (0, 1)), r"needs its sibling \(0, 0\)"),
    ],
)
def test_what_is_no_tree_is_refused(nodes, message):
    with pytest.raises(ValueError, match=message) as caught:
        DraftTree("broken", nodes)
    assert "'broken'" in str(caught.value)


@pytest.mark.parametrize("node", ["0", (0.5,), (None,), 0])
def test_ranks_must_be_integers(node):
    with pytest.raises(TypeError):
        DraftTree("broken", (node,))


def test_equal_trees_have_equal_hashes_in_every_process():
    tree = DraftTree.chain(3)
    code = (
        "import pickle, sys; from entmtp_env.trees import DraftTree; tree = DraftTree.chain(3); hash(tree); "
        "sys.stdout.buffer.write(pickle.dumps(tree))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE)
    other = pickle.loads(output.stdout)
    assert other == tree
    assert {tree: 1}[other] == 1
