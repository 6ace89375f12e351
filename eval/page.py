"""Self-contained HTML pages, and what both of them show: texts with the tree of each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from eval.interleave import Run
from eval.labels import label_specs
from eval.watch import nodes_per_depth

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("eval"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


@jinja2.pass_context
def _label(context: jinja2.runtime.Context, spec: str) -> str:
    """A row by its label, where the context has one in ``labels``."""
    label: str = context["labels"].get(spec, spec)
    return label


_TEMPLATES.filters["label"] = _label


def render_page(template: str, **context: Any) -> str:
    """Render a template of this package; strings in the context are escaped.

    Args:
        template: File name within ``eval/templates``.
        context: What the template reads.
    """
    return _TEMPLATES.get_template(template).render(context)


def tree_colours(runs: Iterable[Run]) -> dict[str, str]:
    """A colour for each tree that was used, as ``#rrggbb``, in the order of the bank."""
    used = sorted({(step.action, step.tree) for run in runs for step in run.episode.steps})
    places = np.linspace(0.1, 0.88, len(used))
    return {tree: to_hex(mpl.colormaps["turbo"](at)) for (_, tree), at in zip(used, places, strict=True)}


def trace_data(runs: Mapping[str, Sequence[Run]], colours: Mapping[str, str]) -> dict[str, Any]:
    """What the pages' script draws: for each prompt, each policy's steps.

    Args:
        runs: Runs by policy, on the same prompts in the same order.
        colours: Colour by tree.

    Returns:
        Plain values. ``trees`` are (name, colour). A prompt has its ``id``, ``texts`` without repetition and
        ``runs`` of ``policy``, ``text`` (an index) and ``steps``: index of the tree, accepted drafts,
        characters (-1 where unknown) and microseconds, the policy's own included; where a tree was built,
        also its nodes a depth and the parent of each node.
    """
    index = {tree: i for i, tree in enumerate(colours)}
    labels = label_specs(runs)
    prompts = []
    for own in zip(*runs.values(), strict=True):
        texts = list(dict.fromkeys(run.episode.text for run in own))
        rows = [
            {
                "policy": labels[run.policy],
                "text": texts.index(run.episode.text),
                "steps": _steps(run, index),
            }
            for run in own
        ]
        prompts.append({"id": own[0].episode.prompt_id, "texts": texts, "runs": rows})
    return {"trees": list(colours.items()), "prompts": prompts}


def _steps(run: Run, index: Mapping[str, int]) -> list[list[Any]]:
    known = any(detail.text for detail in run.details)
    return [
        [
            index[step.tree],
            step.accept_length,
            # JavaScript counts UTF-16 units.
            len(detail.text.encode("utf-16-le", "surrogatepass")) // 2 if known else -1,
            round(1e6 * (step.seconds + step.policy_seconds)),
            *((sizes, detail.parents) if (sizes := nodes_per_depth(step, detail)) else ()),
        ]
        for step, detail in zip(run.episode.steps, run.details, strict=True)
    ]
