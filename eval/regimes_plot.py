"""The two-panel figure of the regimes: correlation of every feature, and AUROC by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from eval.labels import fold_spec, label_specs
from eval.regimes_analysis import CLASSIFIED, FAMILIES, TaskRegimes
from eval.regimes_statistics import Estimate
from eval.regimes_table import PAPER_AUROC

_MARKERS = "osD^vPX*"
_LABEL_WIDTH = 40


def regimes_figure(tasks: Mapping[str, TaskRegimes]) -> Figure:
    """Draw all tasks side by side.

    Args:
        tasks: What was found, by task, the same features in each.
    """
    families = next(iter(tasks.values())).families
    names = [name for family in FAMILIES for name, own in families.items() if own == family]
    figure = Figure(
        figsize=(11, 1.6 + 0.21 * len(names)), layout=ConstrainedLayoutEngine(wspace=0.04), dpi=144
    )
    correlation, classifier = figure.subplots(1, 2, width_ratios=(1.6, 1))
    _draw(correlation, {task: [own.correlations[name] for name in names] for task, own in tasks.items()})
    correlation.set_yticks(range(len(names)), names, fontsize=8)
    correlation.axvline(0, color="0.6", linewidth=1, linestyle="--", zorder=0)
    own = [families[name] for name in names]
    for row in (i for i in range(1, len(own)) if own[i] != own[i - 1]):
        correlation.axhline(row - 0.5, color="0.75", linewidth=0.8)
    correlation.set_xlabel("Pearson r (95 % interval)")
    correlation.set_title("With the next accept length", loc="left", fontsize=11)
    _draw(classifier, {task: [own.aurocs[family] for family in CLASSIFIED] for task, own in tasks.items()})
    classifier.set_yticks(range(len(CLASSIFIED)), CLASSIFIED, fontsize=9)
    classifier.axvspan(*PAPER_AUROC, color="0.93", zorder=0)
    classifier.axvline(0.5, color="0.6", linewidth=1, linestyle="--", zorder=0)
    classifier.set_xlabel("AUROC (95 % interval); grey: the paper's range")
    classifier.set_title("Telling steps that accept no draft", loc="left", fontsize=11)
    figure.legend(
        handles=correlation.get_legend_handles_labels()[0],
        loc="outside upper center",
        ncols=min(4, len(tasks)),
        frameon=False,
        fontsize=9,
    )
    return figure


def _draw(axes: Axes, tasks: Mapping[str, Sequence[Estimate | None]]) -> None:
    """A row of points for each estimate, one point a task; what is undefined is left out."""
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(tasks)))
    labels = label_specs(tasks)
    for i, ((task, estimates), colour) in enumerate(zip(tasks.items(), colours, strict=True)):
        offset = 0.7 * ((i + 0.5) / len(tasks) - 0.5)
        rows = [(y + offset, own) for y, own in enumerate(estimates) if own is not None]
        lengths = [(own.value - own.low, own.high - own.value) for _, own in rows]
        axes.errorbar(
            [own.value for _, own in rows],
            [y for y, _ in rows],
            # A percentile interval may, in principle, leave out the value; matplotlib refuses lengths < 0.
            xerr=np.maximum(0, np.array(lengths).reshape(-1, 2).T),
            fmt=_MARKERS[i % len(_MARKERS)],
            color=colour,
            markersize=4,
            linewidth=1.1,
            label=fold_spec(labels[task], _LABEL_WIDTH),
        )
    count = len(next(iter(tasks.values())))
    axes.set_ylim(count - 0.5, -0.5)
    axes.grid(axis="x", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
