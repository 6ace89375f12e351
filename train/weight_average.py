"""Exponential moving average of weights during training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypedDict

from torch import Tensor, nn


class AverageState(TypedDict):
    """What :meth:`WeightAverage.load_state_dict` restores."""

    updates: int
    average: list[Tensor]


class WeightAverage:
    """The average follows the weights by ``1 - decay`` of their distance at every update.

    Args:
        module: The module in training; its parameters must stay where they are.
        decay: In [0, 1); 0 = the weights themselves.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._weights = [weight.data for weight in module.parameters()]
        self._average = [weight.clone() for weight in self._weights]
        self._decay, self._updates = decay, 0

    def update(self) -> None:
        """Take the weights of a step in."""
        self._updates += 1
        # Early on the average would mostly be the random start.
        decay = min(self._decay, self._updates / (self._updates + 10))
        for average, weight in zip(self._average, self._weights, strict=True):
            average.lerp_(weight, 1 - decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The module has the average as its weights while the block runs."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for average, weight in zip(self._average, self._weights, strict=True):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)

    def state_dict(self) -> AverageState:
        """The average, to be saved."""
        return {"updates": self._updates, "average": self._average}

    def load_state_dict(self, state: AverageState) -> None:
        """Restore a saved average."""
        self._updates = state["updates"]
        for average, saved in zip(self._average, state["average"], strict=True):
            average.copy_(saved)
