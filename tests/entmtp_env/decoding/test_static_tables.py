from random import Random

import pytest
import torch

from entmtp_env.decoding.static_tables import TreeTables
from entmtp_env.trees import AUTOREGRESSIVE, published_trees
from tests.tiny import random_tree

TREES = [AUTOREGRESSIVE, published_trees()["hydra-default"], *(random_tree(Random(i), 15) for i in range(5))]


@pytest.mark.parametrize("tree", TREES, ids=len)
def test_paths_and_levels_name_the_nodes(tree):
    tables = TreeTables(tree, True, torch.device("cpu"))
    nodes = list(tree.rows)
    for row, node in enumerate(nodes):
        path = [nodes[r] for r in tables.paths[row].tolist()]
        assert path == [node[:d] for d in range(tree.depth + 1)]
    above = [()]
    for depth, level in enumerate(tables.levels, start=1):
        own = nodes[level.rows]
        assert [len(node) for node in own] == [depth] * len(own)
        pairs = zip(level.parent.tolist(), level.rank.tolist(), strict=True)
        assert own == [(*above[parent], rank) for parent, rank in pairs]
        assert level.width == max(node[-1] for node in own) + 1
        below = [own[i] for i in level.expanded.tolist()]
        assert [above[i] for i in level.origin.tolist()] == [node[:-1] for node in below]
        above = below
    assert above == [] or tree is AUTOREGRESSIVE


def test_medusa_heads_have_one_row_for_all():
    for level in TreeTables(TREES[1], False, torch.device("cpu")).levels:
        assert not level.parent.any()
