"""The picture of a tree search: acceptance frontier and throughput frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from entmtp_env.trees.frontier import pareto_hull
from train.measured_tree import MeasuredTree, throughput_hull

_MARKERS = {"greedy": "o", "optimal": "^"}
_PUBLISHED = ("D", "s", "P", "X", "v")


def frontier_figure(trees: Sequence[MeasuredTree], title: str) -> Figure:
    """Draw tokens per step and tokens per second against nodes; colour is depth, shape where a tree is from.

    Args:
        trees: All trees.
        title: What was searched on.
    """
    figure = Figure(figsize=(11, 5), layout=ConstrainedLayoutEngine(wspace=0.05), dpi=144)
    acceptance, throughput = figure.subplots(1, 2)
    _draw(acceptance, trees, lambda own: own.run.tau)
    acceptance.set_ylabel("tokens per step")
    acceptance.set_title("Acceptance frontier", loc="left", fontsize=11)
    _draw(throughput, trees, lambda own: own.run.rate)
    throughput.set_ylabel("tokens per second, prefill included")
    throughput.set_title("Throughput frontier", loc="left", fontsize=11)
    best = throughput_hull(trees)[-1]
    throughput.scatter(
        len(best.tree),
        best.run.rate,
        s=150,
        facecolors="none",
        edgecolors="#D55E00",
        linewidths=1.8,
        label=f"EntMTP*: {best.tree.name}",
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.legend(
        *throughput.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    return figure


def _draw(axes: Axes, trees: Sequence[MeasuredTree], value: Callable[[MeasuredTree], float]) -> None:
    hull = [trees[i] for i in pareto_hull([len(own.tree) for own in trees], [value(own) for own in trees])]
    axes.plot(
        [len(own.tree) for own in hull],
        [value(own) for own in hull],
        color="0.6",
        linewidth=1.2,
        zorder=0,
        label="Pareto hull",
    )
    depths = sorted({own.tree.depth for own in trees})
    colours = mpl.colormaps["viridis"].resampled(max(2, len(depths)))
    for kind, marker in _MARKERS.items():
        for depth in depths:
            own = [one for one in trees if one.kind == kind and one.tree.depth == depth]
            if own:
                axes.scatter(
                    [len(one.tree) for one in own],
                    [value(one) for one in own],
                    s=22,
                    marker=marker,
                    color=colours(depths.index(depth)),
                    label=f"{kind}, depth {depth}",
                )
    others = [one for one in trees if one.kind not in _MARKERS]
    for i, one in enumerate(others):
        axes.scatter(
            len(one.tree),
            value(one),
            s=48,
            marker=_PUBLISHED[i % len(_PUBLISHED)],
            color="black",
            label=one.tree.name,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("nodes")
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
