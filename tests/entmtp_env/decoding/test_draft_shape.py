import numpy as np
import pytest

from entmtp_env.decoding.draft_shape import DraftShape


def test_numbers_of_the_nodes():
    shape = DraftShape((1, 2, 3), (3, 2, 1))
    assert shape.depth == 3
    assert shape.widths == (3, 4, 3)
    assert shape.starts == (0, 1, 4, 8, 11)
    assert shape.nodes == 10
    assert shape.depths.tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]


def test_parents_are_the_expanded_nodes_best_first():
    shape = DraftShape((1, 2, 3), (3, 2, 1))
    assert shape.parents(1, np.array([0])).tolist() == [0, 0, 0]
    assert shape.parents(2, np.array([2, 0])).tolist() == [3, 3, 1, 1]
    # Places may come as float32, and of many roots at once.
    many = shape.parents(3, np.array([[3, 0, 1], [0, 1, 2]], dtype=np.float32))
    assert many.tolist() == [[7, 4, 5], [4, 5, 6]]


@pytest.mark.parametrize(
    ("expand", "children", "message"),
    [
        ((), (), "one entry per depth"),
        ((1, 2), (3,), "one entry per depth"),
        ((1, 0), (3, 1), "whole numbers >= 1"),
        ((1, 2.0), (3, 1), "whole numbers >= 1"),
        ((2,), (3,), "depth 1 cannot expand 2 nodes: the depth before it has 1"),
        ((1, 2**20), (2**20, 10**30), "nodes is too large, at most 65535"),
        ((1, 4), (3, 1), "depth 2 cannot expand 4 nodes: the depth before it has 3"),
    ],
)
def test_what_is_no_shape(expand, children, message):
    with pytest.raises(ValueError, match=message):
        DraftShape(expand, children)
