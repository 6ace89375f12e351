"""What a decode step costs in an evaluation itself, by texts between its own whose trees are random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import TopologyBank
from policies import Episode
from policies.base import Memory

_IN_A_ROW = 4
_PARTS = ("seconds", "draft_seconds", "verify_seconds")


class RandomRuns:
    """A predictor that draws a tree, each as often as the others, and stays with it for a few steps.

    Args:
        trees: K.
        seed: Seed of the draws.
    """

    observes = False

    def __init__(self, trees: int, seed: int) -> None:
        self._trees, self._random = trees, np.random.default_rng(seed)
        self._queue: list[int] = []

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], Memory | None]:
        """The next tree, whatever is observed; one environment."""
        if not self._queue:
            self._queue = np.repeat(self._random.permutation(self._trees), _IN_A_ROW).tolist()[::-1]
        return np.array(self._queue.pop()), None


def price_steps(
    name: str,
    bank: TopologyBank,
    episodes: Sequence[Episode],
    prompt_tokens: Mapping[str, int],
    manifest: Mapping[str, Any],
) -> CostTable:
    """A cost table from episodes of :class:`RandomRuns`.

    Means, not medians: the seconds of a text are a sum, to which slow steps belong. A tree's price is a line
    over the context whose slope, relative to its price, is that of all trees together; over the tree's own
    steps it adds up to what they took. Steps behind another tree's are left out: a schedule stays with a tree
    for a while, and a step behind one of another shape takes a few percent longer.

    Args:
        name: Name of the table.
        bank: K trees.
        episodes: The episodes.
        prompt_tokens: Length of each prompt as the model reads it.
        manifest: Kept with the table.

    Raises:
        ValueError: When a tree has no step, as when there are too few texts.
    """
    rows, prefills = [], []
    for episode in episodes:
        length = prompt_tokens[episode.prompt_id]
        prefills.append((length, episode.prefill_seconds))
        for before, step in zip([None, *episode.steps], episode.steps, strict=False):
            if before is not None and before.action == step.action:
                rows.append((step.action, length, *(getattr(step, part) for part in _PARTS)))
            length += step.tokens
    columns = np.array(rows).reshape(-1, 2 + len(_PARTS))
    tree, context = columns[:, 0].astype(np.int64), columns[:, 1]
    missing = [bank.names[k] for k in np.flatnonzero(np.bincount(tree, minlength=len(bank)) == 0)]
    if missing:
        raise ValueError(
            f"no step of {', '.join(missing)} was timed in {len(episodes)} texts; run more prompts or longer "
            "texts, or give the costs of a table"
        )
    ends = np.array([context.min(), context.max() + 1])
    seconds, draft, verify = (_lines(tree, context, part, ends) for part in columns[:, 2:].T)
    residual = columns[:, 2] / np.array(
        [np.interp(c, ends, seconds[k]) for k, c in zip(tree, context, strict=True)]
    )
    spread = np.array([np.quantile(residual[tree == k], (0.25, 0.75)) for k in range(len(bank))])
    low, high = (side[:, None] * seconds for side in spread.T)
    lengths, times = np.array(prefills).T
    return CostTable(
        name=name,
        trees=bank.trees,
        contexts=ends.astype(np.int64),
        seconds=seconds,
        # Of a skewed sample the mean may lie outside.
        lower=np.minimum(low, seconds),
        upper=np.maximum(high, seconds),
        draft_seconds=draft,
        verify_seconds=verify,
        prefill_seconds=np.maximum(times.sum() / lengths.sum() * ends, 1e-9),
        manifest=dict(manifest) | {"steps": len(rows), "statistic": "mean"},
    )


def _lines(
    tree: npt.NDArray[np.int64],
    context: npt.NDArray[np.float64],
    seconds: npt.NDArray[np.float64],
    ends: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Each tree's line at both ends, ``(K, 2)``."""
    counts = np.bincount(tree)
    mean, place = (np.bincount(tree, values) / counts for values in (seconds, context))
    # Trees that take no time at all, as the empty one to draft, say nothing of the slope.
    share = np.divide(seconds, mean[tree], out=np.ones_like(seconds), where=mean[tree] > 0)
    away = (context - place[tree]) * (mean[tree] > 0)
    slope = (away * share).sum() / max((away**2).sum(), 1e-9)
    lines: npt.NDArray[np.float64] = mean[:, None] * (1 + slope * (ends - place[:, None]))
    return np.maximum(lines, 0)
