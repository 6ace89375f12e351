"""Which prompt an episode has: each once in a random order, then in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class PromptQueue:
    """The order of the prompts, fixed by the random generator of its environment.

    Args:
        prompt_ids: Ids of the prompts.
        name: Name of the set, for messages.
    """

    def __init__(self, prompt_ids: Sequence[str], name: str) -> None:
        self._index = {prompt_id: index for index, prompt_id in enumerate(prompt_ids)}
        self._name = name
        self._queue: list[tuple[int, int]] = []

    def clear(self) -> None:
        """Forget the order; to be called when the generator is seeded anew."""
        self._queue = []

    def draw(self, rng: np.random.Generator, options: Mapping[str, Any] | None = None) -> tuple[int, int]:
        """The next prompt.

        Args:
            rng: The generator of the environment.
            options: Those of ``reset``: ``{"prompt_id": …}`` picks a prompt; the order goes on behind it.

        Returns:
            Number of the prompt, and a seed for the sampling of its text.

        Raises:
            ValueError: When the prompt id or an option is unknown; the order stays as it is.
        """
        self.check(options)
        if not self._queue:
            self._queue = list(zip(*draw_order(rng, len(self._index)), strict=True))
        chosen, seed = self._queue.pop()
        return self.find(options["prompt_id"]) if options else chosen, seed

    def check(self, options: Mapping[str, Any] | None) -> None:
        """Check options of ``reset``, before anything changes.

        Raises:
            ValueError: When the prompt id or an option is unknown.
        """
        unknown = set(options or {}) - {"prompt_id"}
        if unknown:
            raise ValueError(f"unknown reset options {sorted(unknown)}; the only one is 'prompt_id'")
        if options:
            self.find(options["prompt_id"])

    def find(self, prompt_id: str) -> int:
        """Number of a prompt.

        Raises:
            ValueError: When there is no such id.
        """
        if prompt_id not in self._index:
            example = next(iter(self._index))
            raise ValueError(f"no prompt {prompt_id!r} in {self._name!r}; ids look like {example!r}")
        return self._index[prompt_id]


def draw_order(rng: np.random.Generator, count: int) -> tuple[list[int], list[int]]:
    """Draw the order of a round through the prompts, and the seeds of their texts; the last comes first."""
    return rng.permutation(count).tolist(), rng.integers(2**63, size=count).tolist()
