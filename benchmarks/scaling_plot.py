"""The picture of how costs grow."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from benchmarks.scaling import Scaling


def scaling_figure(found: Scaling) -> Figure:
    """Draw steps by context and by nodes, prefill, recording and replay side by side.

    Args:
        found: What was measured.
    """
    s, milliseconds = found.sizes, 1e3 * found.seconds
    nodes, contexts = (
        [f"{n} {what}" for n in sizes] for sizes, what in ((s.nodes, "nodes"), (s.contexts, "tokens"))
    )
    figure = Figure(figsize=(13, 7), layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.08), dpi=144)
    by_context, by_nodes, relative, prefill, recording, replay = figure.subplots(2, 3).flat
    _lines(by_context, s.contexts, milliseconds, nodes)
    by_context.set(title="Decode step by context", xlabel="committed tokens", ylabel="ms")
    _lines(by_nodes, s.nodes, milliseconds.T, contexts)
    by_nodes.set(title="Decode step by nodes", xlabel="drafted nodes", ylabel="ms")
    _lines(relative, s.nodes, (found.seconds / found.seconds[0]).T, contexts)
    relative.set(title=f"The same ÷ a step of {nodes[0]}", xlabel="drafted nodes", ylabel="ratio")
    _lines(prefill, s.contexts, 1e3 * found.prefill_seconds[None])
    prefill.set(title="Prefill", xlabel="tokens of the prompt", ylabel="ms")
    _lines(recording, s.batches, found.recorded[None])
    recording.set(
        title="Batched recording", xlabel="texts at a time", ylabel="tokens per second", xscale="log"
    )
    _lines(replay, s.num_envs, found.replayed[None])
    replay.set(title="Replay in lock-step", xlabel="environments", ylabel="steps per second")
    replay.set(xscale="log", yscale="log")
    for axes in figure.axes:
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if axes is not replay:
            # A legend has its place above the lines.
            axes.set_ylim(0, axes.get_ylim()[1] * (1.2 if axes.get_legend() else 1))
    return figure


def _lines(
    axes: Axes, sizes: Sequence[int], values: npt.NDArray[np.float64], labels: Sequence[str] = ("",)
) -> None:
    """A line of ``values`` ``(lines, sizes)`` for each label."""
    colours = mpl.colormaps["viridis"](np.linspace(0, 0.85, len(labels)))
    for own, label, colour in zip(values, labels, colours, strict=True):
        axes.plot(sizes, own, marker="o", markersize=3.5, linewidth=1.3, color=colour, label=label)
    if len(labels) > 1:
        axes.legend(frameon=False, fontsize=7, ncols=2)
