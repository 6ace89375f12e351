"""The picture of a calibration: where the thresholds lie in the scores."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from policies.base import SchedulerPolicy
from train.candidates import StaticRuns

_BINS = 50
_THRESHOLD = "#D55E00"


def score_figure(runs: StaticRuns, policies: Sequence[SchedulerPolicy]) -> Figure:
    """Draw, for each policy, the histogram of its score and its thresholds.

    The steps are those of its trees, each alone on the calibration prompts: the score may depend on what was
    drafted last.

    Args:
        runs: What each tree did alone, the scores of the policies among them.
        policies: Calibrated policies that read a score, `policies.threshold.Threshold` and
            `policies.ladder.Ladder`.
    """
    figure = Figure(figsize=(7 * len(policies), 4), layout="constrained", dpi=144)
    panels = figure.subplots(1, len(policies), squeeze=False)[0]
    for axes, policy in zip(panels, policies, strict=True):
        _draw(axes, runs, policy)
    return figure


def _draw(axes: Axes, runs: StaticRuns, policy: SchedulerPolicy) -> None:
    options = policy.options
    score = options["score"]
    trees = options["trees"] if "trees" in options else (options["small"], options["large"])
    values = [runs.scores[tree][score] for tree in trees]
    bins = np.histogram_bin_edges(np.concatenate(values), _BINS).tolist()
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(trees)))
    for tree, own, colour in zip(trees, values, colours, strict=True):
        shares = np.full(len(own), 1 / len(own))
        axes.hist(own, bins, weights=shares, histtype="step", color=colour, linewidth=1.4, label=tree)
    for edge, label, style in _thresholds(policy):
        axes.axvline(edge, color=_THRESHOLD, linestyle=style, linewidth=1.4, label=label)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(score)
    axes.set_ylabel("steps of each tree alone")
    axes.set_title(policy.name, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _thresholds(policy: SchedulerPolicy) -> list[tuple[float, str, str]]:
    options = policy.options
    if "edges" in options:
        return [(edge, "edges" if i == 0 else "", "-") for i, edge in enumerate(options["edges"])]
    on, off = options["on"], options["off"]
    return [(on, f"τ_on = {on:g}", "-"), (off, f"τ_off = {off:g}", "--")]
