import pytest

from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from train.measured_tree import MeasuredTree, fastest_by_size, most_biased, throughput_hull
from train.tree_search import TreeRun


def measured(size, rate, kind="greedy", estimate=1.0, steps=10, name=""):
    tree = DraftTree.chain(size, name or f"{kind}-{size}") if size else AUTOREGRESSIVE
    return MeasuredTree(tree, kind, estimate, TreeRun(20, steps, 20 / rate - 0.5, 0.5))


def test_bias_is_that_of_tokens_per_step():
    own = measured(3, 5.0, estimate=1.06)
    assert (own.run.tau, own.estimated_tau) == (2.0, 2.06)
    assert own.bias == pytest.approx(0.03)
    assert measured(3, 5.0, estimate=None).bias is None
    trees = [own, measured(1, 5.0, estimate=0.9), measured(2, 5.0, "optimal", 0.1)]
    assert most_biased(trees) is trees[1]


def test_the_hull_counts_the_prefill():
    trees = [measured(3, 6.0), measured(0, 2.0, "autoregressive", None), measured(1, 4.0), measured(2, 3.9)]
    assert [len(own.tree) for own in throughput_hull(trees)] == [0, 1, 3]
    assert [own.run.rate for own in throughput_hull(trees)] == pytest.approx([2, 4, 6])


def test_of_each_size_the_fastest_of_a_kind():
    trees = [measured(2, r, "optimal", name=f"o{r}") for r in (3.0, 4.0)] + [measured(2, 9.0)]
    assert fastest_by_size(trees, "optimal") == {2: trees[1]}
    assert fastest_by_size(trees, "greedy") == {2: trees[2]}
