"""The figures of a scheduler, summed up while it decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.rollout import Episode

Figures = dict[str, float]
"""By name:

``tokens_per_second``: tokens over decoding time; ``accept_length``: accepted drafts per step; ``regret``:
time over that of the best possible schedules, 1 is optimal; ``switch_rate``: share of the steps after a
text's first whose tree is another than the step's before; ``action_<k>``: share of the steps with tree k.
"""


class Tally:
    """Sums over texts that have ended, and over choices.

    Args:
        trees: K, the number of trees.
        least_seconds: Time of the best possible schedule by prompt id.
    """

    def __init__(self, trees: int, least_seconds: Mapping[str, float]) -> None:
        self._least = least_seconds
        self._tokens, self._steps, self._seconds, self._least_seconds = 0, 0, 0.0, 0.0
        self._chosen: npt.NDArray[np.int64] = np.zeros(trees, dtype=np.int64)
        self._switches, self._successors = 0, 0

    def add_text(self, prompt_id: str, tokens: int, steps: int, seconds: float) -> None:
        """Count a text that has ended."""
        self._tokens += tokens
        self._steps += steps
        self._seconds += seconds
        self._least_seconds += self._least[prompt_id]

    def add_choices(self, actions: npt.NDArray[np.integer[Any]], switches: int, successors: int) -> None:
        """Count choices, and among ``successors``, the pairs of one text, those of two trees."""
        self._chosen += np.bincount(actions, minlength=len(self._chosen))
        self._switches += switches
        self._successors += successors

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Count whole texts with their choices."""
        for episode in episodes:
            self.add_text(episode.prompt_id, episode.tokens, len(episode.steps), episode.seconds)
            actions = np.array([action for step in episode.steps for action in step.decisions])
            self.add_choices(actions, episode.switches, len(episode.steps) - 1)

    def figures(self) -> Figures:
        """The figures, without those that need a text's end or a second step when there was none."""
        figures: Figures = {}
        if self._tokens:
            figures["tokens_per_second"] = self._tokens / self._seconds
            figures["accept_length"] = self._tokens / self._steps - 1
            figures["regret"] = self._seconds / self._least_seconds
        if self._successors:
            figures["switch_rate"] = self._switches / self._successors
        shares = self._chosen / max(int(self._chosen.sum()), 1)
        return figures | {f"action_{k}": share for k, share in enumerate(shares.tolist())}
