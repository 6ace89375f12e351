"""A text for the terminal: a colour per tree, steps told apart by underlining."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.style import Style
from rich.text import Text

from eval.interleave import Run
from eval.watch import nodes_per_depth

_BLOCKS = "▁▂▃▄▅▆▇█"


def trace_text(run: Run, colours: Mapping[str, str]) -> Text:
    """A run as coloured text: its numbers, the accept length of each step, the reply, and its trees.

    Of a run whose steps build their trees it also has the nodes of each: ``5+2+0`` is a tree of five nodes at
    the first depth and two at the second, when a third was drafted in vain.

    Args:
        run: A watched run; without the texts of its steps the reply is plain.
        colours: Colour by tree, ``#rrggbb``.
    """
    episode = run.episode
    rate = episode.tokens / (episode.seconds + episode.policy_seconds)
    shown = Text()
    shown.append(f"{run.policy}: ", style="bold")
    shown.append(
        f"{episode.tokens} tokens in {len(episode.steps)} steps, τ = {episode.tau:.2f}, {rate:.1f} tok/s\n"
    )
    deepest = max(1, *(step.accept_length for step in episode.steps))
    for step in episode.steps:
        block = _BLOCKS[step.accept_length * (len(_BLOCKS) - 1) // deepest]
        shown.append(block, style=colours[step.tree])
    shown.append("\n")
    sizes = [nodes_per_depth(*own) for own in zip(episode.steps, run.details, strict=True)]
    if any(sizes):
        for step, own in zip(episode.steps, sizes, strict=True):
            shown.append("+".join(map(str, own)) or "0", style=colours[step.tree])
            shown.append(" ")
        shown.append("\n")
    shown.append("\n")
    pieces = [detail.text for detail in run.details]
    if any(pieces):
        for i, (step, piece) in enumerate(zip(episode.steps, pieces, strict=True)):
            shown.append(piece, style=Style(color=colours[step.tree], underline=i % 2 == 1))
    else:
        shown.append(episode.text)
    shown.append("\n\n")
    for tree, count in Counter(step.tree for step in episode.steps).most_common():
        shown.append(f"■ {tree}", style=colours[tree])
        shown.append(f" {count} steps   ")
    return shown.append("\n")
