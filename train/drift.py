"""Drift of a machine's speed, told apart from what steps cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS = 10


def drift(seconds: Floats) -> Floats:
    """By what factor the machine was slow while each round of steps was timed.

    Other work on a machine, or its clock rate, makes all steps of a few seconds longer by about one factor,
    often by more than two trees differ. In logarithms a step is then the sum of what its tree costs at its
    context length and of the drift of its round, which Tukey's median polish tells apart (Exploratory Data
    Analysis, 1977, chapter 11); medians keep single outliers out of both.

    Args:
        seconds: Steps of R rounds with K trees at C context lengths, > 0, ``(R, K, C)``. The steps of one
            round at one context length were timed together, in random order.

    Returns:
        Factors with a median near 1, ``(R, C)``; ``seconds`` divided by them are those of a steady machine.
    """
    logs = np.log(seconds)
    of_rounds = np.stack([_polish(logs[..., c])[0] for c in range(logs.shape[2])], axis=1)
    # What differs between context lengths in every round is cost, too.
    _, of_contexts = _polish(of_rounds)
    factors = of_rounds - of_contexts
    return np.exp(factors - np.median(factors))


def _polish(table: Floats) -> tuple[Floats, Floats]:
    """Row effects ``(R,)`` and column effects ``(N,)`` of a table ``(R, N)`` by median polish."""
    rows, columns = np.zeros(len(table)), np.zeros(table.shape[1])
    for _ in range(_ROUNDS):
        columns = np.median(table - rows[:, None], axis=0)
        rows = np.median(table - columns, axis=1)
    return rows, columns
