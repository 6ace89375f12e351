"""A small network that learns from examples, and stops when examples of other texts gain no more."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.network import Network
from train.numpy_network import to_numpy

Examples = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]
"""Observations ``(M, F)``, targets ``(M, K)``; of L decisions in a row ``(M, L, F)`` and ``(M, L, K)``."""

Loss = Callable[[Tensor, Tensor], Tensor]

_HIDDEN = 64
_BATCH = 512
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 1e-4
_PATIENCE = 4
_CLIP = 10.0
_CONSTANT = 1e-3
"""A feature that varies less is left as it is: in other texts it may take any value."""


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error."""
    return (outputs - targets).square().mean()


def expected_cost(logits: Tensor, costs: Tensor) -> Tensor:
    """Mean cost of actions drawn by the softmax of the logits, where ``costs`` has that of every action."""
    return (logits.softmax(dim=1) * costs).sum(dim=1).mean()


def expected_cost_of_stages(logits: Tensor, costs: Tensor) -> Tensor:
    """Mean cost of a chain of decisions drawn by the softmax of the logits, all chances enumerated.

    Args:
        logits: ``(M, L, K)``; action 0 of a decision leads to the next one.
        costs: In the same shape: that of action 0 itself, of the others with all that follows; NaN = illegal.
    """
    legal = ~costs.isnan()
    chances = logits.masked_fill(~legal, -torch.inf).softmax(dim=2)
    paid = (chances * costs.nan_to_num()).sum(dim=2)
    behind = torch.zeros_like(paid[:, 0])
    for own, deeper in zip(paid.unbind(1)[::-1], chances[:, :, 0].unbind(1)[::-1], strict=True):
        behind = own + deeper * behind
    return behind.mean()


class Student:
    """A perceptron with two hidden layers of 64 tanh units, and how it is trained.

    Args:
        examples: Their means and deviations normalise the inputs and, of a ``squared_error``, the targets.
        loss: `squared_error`, or `expected_cost` or `expected_cost_of_stages` with costs as targets.
        seed: Seed of the weights and of the order of the examples.
    """

    def __init__(self, examples: Examples, loss: Loss, seed: int) -> None:
        observations, targets = examples
        axes = tuple(range(observations.ndim - 1))
        self._mean, deviation = observations.mean(axis=axes), observations.std(axis=axes)
        self._scale = np.where(deviation < _CONSTANT, np.float32(1), deviation)
        # One unit for all outputs: an error counts the same wherever it is made.
        self._unit = float(np.nanstd(targets)) or 1.0
        self._values = loss is squared_error
        self._centre = targets.mean(axis=axes) if self._values else np.zeros(targets.shape[-1])
        self._loss, self._generator = loss, torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._layers = nn.Sequential(
                nn.Linear(observations.shape[-1], _HIDDEN),
                nn.Tanh(),
                nn.Linear(_HIDDEN, _HIDDEN),
                nn.Tanh(),
                nn.Linear(_HIDDEN, targets.shape[-1]),
            )

    def learn(
        self, examples: Examples, validation: Examples, epochs: int, advance: Callable[[], None]
    ) -> None:
        """Train on from the present weights, and keep those that are best on the validation examples.

        Args:
            examples: What is learnt from.
            validation: Examples of other texts.
            epochs: Passes over the examples, at most.
            advance: Called ``epochs`` times, at once for those that are saved.
        """
        inputs, targets = self._tensors(examples)
        held_out = self._tensors(validation)
        optimizer = torch.optim.AdamW(self._layers.parameters(), _LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
        best, least, since = deepcopy(self._layers.state_dict()), float("inf"), 0
        for _ in range(epochs):
            if since < _PATIENCE:
                for rows in torch.randperm(len(inputs), generator=self._generator).split(_BATCH):
                    optimizer.zero_grad()
                    self._loss(self._layers(inputs[rows]), targets[rows]).backward()
                    optimizer.step()
                with torch.no_grad():
                    error = float(self._loss(self._layers(held_out[0]), held_out[1]))
                since += 1
                if error < least:
                    best, least, since = deepcopy(self._layers.state_dict()), error, 0
            advance()
        self._layers.load_state_dict(best)

    def network(self) -> Network:
        """What has been learnt, for acting; outputs are values in the unit of the targets, or logits."""
        layers = deepcopy(self._layers)
        if self._values:
            with torch.no_grad():
                layers[-1].get_parameter("weight").mul_(self._unit)
                layers[-1].get_parameter("bias").mul_(self._unit).add_(torch.as_tensor(self._centre))
        return to_numpy(layers, self._mean, self._scale, _CLIP)

    def _tensors(self, examples: Examples) -> tuple[Tensor, Tensor]:
        observations, targets = examples
        inputs = np.clip((observations - self._mean) / self._scale, -_CLIP, _CLIP)
        scaled = (targets - self._centre) / self._unit
        return torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(scaled, dtype=torch.float32)
