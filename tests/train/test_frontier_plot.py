import numpy as np

from entmtp_env.trees import AUTOREGRESSIVE, published_trees
from entmtp_env.trees.presets import likely_tree
from train.frontier_plot import frontier_figure
from train.measured_tree import MeasuredTree
from train.tree_search import TreeRun


def make(tree, kind, steps, seconds):
    return MeasuredTree(tree, kind, None, TreeRun(1000, steps, seconds, 1.0))


def trees():
    shares = (0.5, 0.2, 0.1)
    own = [make(AUTOREGRESSIVE, "autoregressive", 1000, 30.0)]
    for n in (1, 2, 4, 8, 12):
        tree = likely_tree(n, 3, shares, f"greedy-{n}")
        own.append(make(tree, "greedy", 1000 - 40 * n, 20.0 + abs(n - 8)))
    own.append(make(likely_tree(4, 1, (0.5, 0.2, 0.1, 0.1), "optimal-4x1"), "optimal", 700, 25.0))
    return own + [make(tree, "published", 400, 28.0) for tree in published_trees().values()]


def test_every_tree_is_drawn_at_its_nodes_and_value():
    figure = frontier_figure(trees(), "chat")
    for axes, value in zip(figure.axes, (lambda own: own.run.tau, lambda own: own.run.rate), strict=True):
        drawn = np.concatenate(
            [np.asarray(c.get_offsets()) for c in axes.collections if "EntMTP*" not in c.get_label()]
        )
        expected = [(len(own.tree), value(own)) for own in trees()]
        np.testing.assert_allclose(sorted(drawn.tolist()), sorted(expected))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "EntMTP*: greedy-8" in labels
    assert {"hydra-default", "medusa-7b-stage1", "greedy, depth 3", "optimal, depth 1"} <= set(labels)


def test_the_hull_of_throughput_ends_at_the_fastest_tree():
    throughput = frontier_figure(trees(), "chat").axes[1]
    x, y = throughput.lines[0].get_data()
    assert (x[0], x[-1]) == (0, 8)
    assert np.all(np.diff(y) > 0)
    (star,) = (c for c in throughput.collections if "EntMTP*" in c.get_label())
    np.testing.assert_allclose(star.get_offsets(), [(8, 1000 / 21)])


def test_one_depth_has_one_colour_whatever_the_kind():
    axes = frontier_figure(trees(), "chat").axes[0]
    colours = {c.get_label(): tuple(c.get_facecolor()[0]) for c in axes.collections}
    assert colours["greedy, depth 1"] == colours["optimal, depth 1"] != colours["greedy, depth 3"]
