from itertools import product
from math import prod

import pytest

from entmtp_env.trees import default_bank, load_bank, published_trees
from entmtp_env.trees.presets import likely_tree, shipped_banks

SHARES = (0.6, 0.2, 0.1)


def test_published_trees_have_63_nodes_to_depth_4():
    trees = published_trees()
    assert set(trees) == {"hydra-default", "medusa-7b-stage1", "medusa-7b-stage2"}
    for name, tree in trees.items():
        assert (tree.name, len(tree), tree.depth) == (name, 63, 4)
        assert tree.max_rank <= 9
    assert len({tree.fingerprint for tree in trees.values()}) == 3


def test_the_default_bank_grows_from_0_to_63_nodes():
    bank = default_bank()
    sizes = [len(tree) for tree in bank]
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1], len(bank)) == (0, 63, 10)
    assert (bank.names[0], bank.names[-1]) == ("autoregressive", "hydra-default")
    assert bank[9] == published_trees()["hydra-default"]
    assert bank.depth == 4


def value(nodes):
    return sum(prod(SHARES[rank] for rank in node) for node in nodes)


def is_tree(nodes):
    present = {(), *nodes}
    return all(
        node[:-1] in present and (node[-1] == 0 or (*node[:-1], node[-1] - 1) in present) for node in nodes
    )


@pytest.mark.parametrize("size", range(6))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_likely_tree_is_the_best_of_all_trees(size, depth):
    """Brute force: no tree of this size and depth expects more accepted tokens."""
    nodes = [node for d in range(1, depth + 1) for node in product(range(3), repeat=d)]
    trees = {frozenset()}
    for _ in range(size):
        trees = {
            tree | {node} for tree in trees for node in nodes if node not in tree and is_tree(tree | {node})
        }
    if not trees:
        with pytest.raises(ValueError, match=f"make 3 nodes, not {size}"):
            likely_tree(size, depth, SHARES, "likely")
        return
    tree = likely_tree(size, depth, SHARES, "likely")
    assert (len(tree), tree.name) == (size, "likely")
    assert tree.depth <= depth
    assert value(tree.nodes) == pytest.approx(max(value(other) for other in trees))


def test_shipped_banks_load_by_name():
    for name, path in shipped_banks().items():
        bank = load_bank(name)
        assert bank.name == name == path.stem
        assert len(bank[0]) == 0
        assert bank.depth <= 4
