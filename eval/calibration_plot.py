"""The picture of the heads' calibration: what they state against what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from eval.calibration import Calibration, Reliability
from eval.labels import fold_spec

_LABEL_WIDTH = 40
_MARKERS = "osD^vPX*"
_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def calibration_figure(heads: Mapping[str, Calibration]) -> Figure:
    """Draw reliability diagrams: a row per set of heads, confidence beside path value, a line per depth.

    Args:
        heads: Calibration by heads.
    """
    figure = Figure(figsize=(9, 0.6 + 4.2 * len(heads)), layout=ConstrainedLayoutEngine(), dpi=144)
    grid = figure.subplots(len(heads), 2, squeeze=False)
    for (name, own), (confidence, path_value) in zip(heads.items(), grid, strict=True):
        label = fold_spec(name, _LABEL_WIDTH)
        _draw(confidence, own.confidence, f"{label}\nBest candidate, the path before it right")
        confidence.set_ylabel("share that was right")
        _draw(path_value, own.path_value, "Whole greedy chain")
    for axes, what in zip(grid[-1], ("stated probability", "path value"), strict=True):
        axes.set_xlabel(f"{what} (mean of a bin)")
    return figure


def _draw(axes: Axes, depths: Sequence[Reliability], title: str) -> None:
    axes.plot((0, 1), (0, 1), color="0.6", linewidth=1, linestyle="--", zorder=0)
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(depths)))
    for i, (diagram, colour) in enumerate(zip(depths, colours, strict=True)):
        axes.plot(
            diagram.stated,
            diagram.observed,
            marker=_MARKERS[i % len(_MARKERS)],
            color=colour,
            markersize=4.5,
            linewidth=1.4,
            label=f"depth {i + 1}, error {diagram.error:.3f}",
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xticks(_TICKS)
    axes.set_yticks(_TICKS)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
