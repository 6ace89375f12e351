from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, published_trees
from entmtp_env.trees.walk import accept_lengths, decode_steps
from tests.tiny import random_tree

HUGE = np.iinfo(np.int32).max


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    ranks=st.lists(
        st.tuples(*[st.sampled_from([-1, 0, 0, 0, 1, 1, 2, 3, 7, HUGE])] * 5), min_size=1, max_size=20
    ),
)
def test_a_tree_accepts_the_longest_prefix_that_is_one_of_its_paths(seed, size, ranks):
    tree = random_tree(Random(seed), size)
    expected = [next(d for d in range(5, -1, -1) if d == 0 or row[:d] in tree.nodes) for row in ranks]
    assert accept_lengths(tree, np.array(ranks, dtype=np.int32)).tolist() == expected


def test_the_empty_tree_accepts_nothing():
    assert accept_lengths(AUTOREGRESSIVE, np.zeros((3, 4), dtype=np.int32)).tolist() == [0, 0, 0]


def test_a_tree_deeper_than_the_ranks_is_refused():
    with pytest.raises(ValueError, match="'hydra-default' has depth 4, the ranks only 3"):
        accept_lengths(published_trees()["hydra-default"], np.zeros((1, 3), dtype=np.int32))


def test_steps_begin_behind_what_the_last_accepted():
    assert decode_steps(np.array([2, 0, 0, 1, 5, 0])) == [0, 3, 5]
    assert decode_steps(np.array([0])) == [0]
    assert decode_steps(accept_lengths(DraftTree.chain(1), np.array([[0], [0], [3], [-1]]))) == [0, 2, 3]
