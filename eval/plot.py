"""The picture of a comparison: speed-ups with intervals, beside the trees that were used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eval.labels import fold_spec, label_specs
from eval.statistics import REFERENCE
from eval.summary import PolicySummary

# Okabe and Ito's palette, safe for the colour-blind; markers tell the sets apart without colour.
_SETS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "D"),
    ("#CC79A7", "^"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)
_LABEL_WIDTH = 30


def comparison_figure(sets: Mapping[str, Sequence[PolicySummary]], trees: Sequence[str]) -> Figure:
    """Draw all prompt sets side by side.

    Args:
        sets: Summaries by prompt set, the same policies in the same order in each.
        trees: Names of the bank's trees in order, the order of the stacks.
    """
    policies = [row.policy for row in next(iter(sets.values()))]
    labels = [fold_spec(label, _LABEL_WIDTH) for label in label_specs(policies).values()]
    lines = sum(max(len(sets), label.count("\n") + 1) for label in labels)
    figure = Figure(
        figsize=(11, 2.2 + 0.22 * lines + 0.14 * len(policies)),
        layout=ConstrainedLayoutEngine(wspace=0.05),
        dpi=144,
    )
    speed, share = figure.subplots(1, 2, sharey=True, width_ratios=(1.15, 1))
    _draw_speed(speed, sets)
    used = [tree for tree in trees if any(tree in row.trees for rows in sets.values() for row in rows)]
    colours = dict(zip(used, mpl.colormaps["viridis"](np.linspace(0, 1, len(used))), strict=True))
    _draw_shares(share, sets, colours)
    speed.set_yticks(range(len(policies)), labels, fontsize=9)
    speed.set_ylim(len(policies) - 0.5, -0.5)
    for axes in (speed, share):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.legend(
        handles=speed.get_legend_handles_labels()[0],
        loc="outside upper center",
        ncols=min(4, len(sets)),
        frameon=False,
        fontsize=9,
    )
    figure.legend(
        handles=[Patch(color=colour, label=tree) for tree, colour in colours.items()],
        loc="outside lower center",
        ncols=min(6, len(used)),
        frameon=False,
        fontsize=8,
        title="tree",
    )
    return figure


def _places(count: int) -> list[float]:
    """Vertical offsets of the sets around a policy's tick."""
    return [0.7 * ((i + 0.5) / count - 0.5) for i in range(count)]


def _draw_speed(axes: Axes, sets: Mapping[str, Sequence[PolicySummary]]) -> None:
    for i, ((name, rows), offset) in enumerate(zip(sets.items(), _places(len(sets)), strict=True)):
        colour, marker = _SETS[i % len(_SETS)]
        values = [row.rho.value for row in rows]
        below = [value - (row.rho.low or value) for value, row in zip(values, rows, strict=True)]
        above = [(row.rho.high or value) - value for value, row in zip(values, rows, strict=True)]
        axes.errorbar(
            values,
            [y + offset for y in range(len(rows))],
            # A percentile interval may, in principle, leave out the value; matplotlib refuses lengths < 0.
            xerr=[[max(0.0, x) for x in below], [max(0.0, x) for x in above]],
            fmt=marker,
            color=colour,
            markersize=5.5,
            capsize=3,
            linewidth=1.4,
            label=name,
        )
    axes.axvline(1, color="0.6", linewidth=1, linestyle="--", zorder=0)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(f"throughput ÷ {REFERENCE} (95 % interval)")
    axes.set_title("Speed-up", loc="left", fontsize=11)


def _draw_shares(
    axes: Axes,
    sets: Mapping[str, Sequence[PolicySummary]],
    colours: Mapping[str, npt.NDArray[np.float64]],
) -> None:
    height = 0.6 / len(sets)
    for rows, offset in zip(sets.values(), _places(len(sets)), strict=True):
        places = [y + offset for y in range(len(rows))]
        left = [0.0] * len(rows)
        for tree, colour in colours.items():
            widths = [row.trees.get(tree, 0) / row.steps for row in rows]
            axes.barh(places, widths, height, left=left, color=colour, edgecolor="white", linewidth=0.5)
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("share of decode steps")
    axes.set_title("Trees used", loc="left", fontsize=11)
