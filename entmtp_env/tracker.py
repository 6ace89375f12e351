"""The running features: what a scheduler sees, kept up to date from decode step to decode step.

Every formula stands here once and serves plain floats (one environment) and arrays (N in lock-step) alike: a
*value* below is either. With floats, a step of one environment is an order of magnitude faster than with
arrays of one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from entmtp_env.features import ACCEPT_WINDOWS, ENTROPY_WINDOWS, FeatureSet

Value = Any
"""A float, or an array with one entry per environment."""

_ENTROPY_ALPHAS = [(index, 2.0 / (window + 1)) for index, window in enumerate(ENTROPY_WINDOWS)]
_FAST, _SLOW = (2.0 / (window + 1) for window in ACCEPT_WINDOWS)
_RECENT = 8


@dataclass(slots=True)
class Signals:
    """What the decoder knows at a decision; values are kept until the next one, so do not modify them.

    The three about the last step (``accept_length``, ``first_draft_right``, ``action``) are ignored by a
    reset.

    Attributes:
        base_top1: p_0, top-1 probability of the distribution behind the root.
        base_entropy: Its entropy in nats / ln V.
        head_top1: p_d, top-1 probability of head d along the greedy chain of the last draft: floats of the
            depths that were drafted, or an array per depth 1..D with NaN where it was not.
        head_entropy: Entropy of the same distributions / ln V', in the same form.
        accept_length: Accepted drafts of the last step.
        first_draft_right: 1 when the last step's first greedy draft was the true token, else 0; NaN when
            nothing was drafted.
        generated_fraction: Generated tokens / token cap.
        context_fraction: Tokens in the context / KV capacity.
        action: Index of the last step's tree.
        root_shape: :func:`~entmtp_env.features.root_shape` of the root's text, five values.
        tree_value: Sum of the path values over each tree's nodes, a value per tree; only with
            ``probe="union"``.
    """

    base_top1: Value
    base_entropy: Value
    head_top1: Sequence[Value]
    head_entropy: Sequence[Value]
    accept_length: Value
    first_draft_right: Value
    generated_fraction: Value
    context_fraction: Value
    action: Value
    root_shape: Sequence[Value]
    tree_value: Sequence[Value] | None = None


class FeatureTracker:
    """The running features: call :meth:`reset`, then :meth:`step` after each decode step.

    Args:
        features: The feature set.
        num_envs: How many environments go in lock-step, each signal an array ``(num_envs,)``; ``None`` for
            one whose signals are plain floats.
    """

    def __init__(self, features: FeatureSet, num_envs: int | None = None) -> None:
        self.features, self.num_envs = features, num_envs
        ops = _FLOATS if num_envs is None else _ARRAYS
        self._groups = [_GROUPS[name](features, ops) for name in features.groups]
        self._low, self._high = features.low, features.high
        if num_envs is not None:
            self._low, self._high = self._low[:, None], self._high[:, None]

    def reset(self, signals: Signals) -> None:
        """Start an episode in every environment.

        A depth that was never drafted counts as confidence 1 and entropy 0: a policy that starts small still
        learns what deep trees promise. With ``probe="first"`` that is all depths but the first, throughout.

        Args:
            signals: The signals at the first decision.
        """
        for group in self._groups:
            group.reset(signals)

    def step(self, signals: Signals) -> None:
        """Advance every environment by one decode step.

        Args:
            signals: The signals at the decision after the step.
        """
        for group in self._groups:
            group.step(signals)

    def restart(self, rows: npt.NDArray[np.intp], signals: Signals) -> None:
        """Start episodes in some environments; the others keep their features.

        Args:
            rows: Which environments.
            signals: Their signals at the first decision, each ``(len(rows),)``.
        """
        fresh = FeatureTracker(self.features, len(rows))
        fresh.reset(signals)
        for mine, new in zip(self._groups, fresh._groups, strict=True):
            mine.replace(rows, new)

    def observe(self) -> npt.NDArray[np.float32]:
        """The features now, clipped to their bounds; NaN becomes the lower bound.

        Returns:
            A fresh array, ``(F,)`` or ``(num_envs, F)``; the latter in Fortran order.
        """
        columns: list[Value] = []
        for group in self._groups:
            columns += group.now
        if self.num_envs is None:
            vector = np.fromiter(columns, np.float32, len(columns))
        else:
            vector = np.empty((len(columns), self.num_envs), dtype=np.float32)
            for row, column in zip(vector, columns, strict=True):
                row[:] = column
        np.fmax(vector, self._low, vector)
        np.fmin(vector, self._high, vector)
        return vector if self.num_envs is None else vector.T


@dataclass(frozen=True)
class _Ops:
    """The few operations that floats and arrays do not share.

    Attributes:
        constant: A number in the form of the value beside it.
        minimum: The lesser of two values.
        extremes: The least and the greatest of the first so many of the values; the others are 0.
        push: Put a value before the first of a full deque, where it is not NaN.
        update: Overwrite a list by another where that is known: up to its end, and where no array has NaN.
    """

    constant: Callable[[float, Value], Value]
    minimum: Callable[[Value, Value], Value]
    extremes: Callable[[Iterable[Value], Value], tuple[Value, Value]]
    push: Callable[[deque[Value], Value], None]
    update: Callable[[list[Value], Sequence[Value]], None]

    def __reduce__(self) -> str:
        """Pickle the name of the constant: lambdas have none."""
        return "_FLOATS" if self is _FLOATS else "_ARRAYS"


def _extremes_of_floats(values: Iterable[float], count: int) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[-count], ordered[-1]


def _extremes_of_arrays(values: Iterable[Value], counts: Value) -> tuple[Value, Value]:
    filled_or_1 = [value + (index >= counts) for index, value in enumerate(values)]
    return reduce(np.minimum, filled_or_1), reduce(np.maximum, values)


def _push_float(values: deque[float], new: float) -> None:
    if new == new:
        values.appendleft(new)


def _push_array(values: deque[Value], new: Value) -> None:
    known = new == new
    values.extend([np.where(known, a, b) for a, b in zip([new, *values], values, strict=False)])


def _update_floats(values: list[float], new: Sequence[float]) -> None:
    values[: len(new)] = new


def _update_arrays(values: list[Value], new: Sequence[Value]) -> None:
    values[:] = [np.where(b == b, b, a) for a, b in zip(values, new, strict=True)]


_FLOATS = _Ops(
    constant=lambda value, like: value,
    minimum=min,
    extremes=_extremes_of_floats,
    push=_push_float,
    update=_update_floats,
)
_ARRAYS = _Ops(
    constant=lambda value, like: np.full_like(like, value),
    minimum=np.minimum,
    extremes=_extremes_of_arrays,
    push=_push_array,
    update=_update_arrays,
)


class _Group(ABC):
    """A group of features.

    Attributes:
        memory: Names of the attributes that hold a list of values.
        now: The features, in the order of the table.
    """

    memory: ClassVar[tuple[str, ...]] = ("now",)
    now: list[Value]

    def __init__(self, features: FeatureSet, ops: _Ops) -> None:
        self.ops, self.depth, self.num_trees = ops, features.depth, features.num_trees
        self.divisor = features.depth or 1

    @abstractmethod
    def reset(self, s: Signals) -> None:
        """Begin an episode."""

    @abstractmethod
    def step(self, s: Signals) -> None:
        """Advance by a decode step."""

    def replace(self, rows: npt.NDArray[np.intp], other: _Group) -> None:
        """Take the values of some environments from ``other``, where they are all."""
        for name in self.memory:
            values: MutableSequence[Value] = getattr(self, name)
            for index, new in enumerate(getattr(other, name)):
                values[index] = values[index].copy()
                values[index][rows] = new


class _Base(_Group):
    def reset(self, s: Signals) -> None:
        self.now = [s.base_top1, s.base_entropy]

    step = reset


class _Entropy(_Group):
    def reset(self, s: Signals) -> None:
        self.now = [s.base_entropy] * len(_ENTROPY_ALPHAS)

    def step(self, s: Signals) -> None:
        new, averages = s.base_entropy, self.now
        for index, alpha in _ENTROPY_ALPHAS:
            averages[index] = averages[index] + alpha * (new - averages[index])


class _Heads(_Group):
    memory = ("now", "confidence", "entropy")

    def reset(self, s: Signals) -> None:
        one, self.zero = (self.ops.constant(value, s.base_top1) for value in (1.0, 0.0))
        self.confidence, self.entropy = [one] * self.depth, [self.zero] * self.depth
        self.step(s)

    def step(self, s: Signals) -> None:
        p0, confidences, update = s.base_top1, self.confidence, self.ops.update
        update(confidences, s.head_top1)
        update(self.entropy, s.head_entropy)
        paths: list[Value] = []
        survive: Value = 1.0
        expected = self.zero
        for confidence in confidences:
            survive = survive * confidence
            expected = expected + survive
            paths.append(p0 * survive)
        # The published max(p_0, g_1 ... g_D); every p_i <= 1, so it is always p_0.
        best, deep = p0, paths[-1] if paths else p0
        self.now = [*paths, *self.entropy, best, deep, expected / self.divisor]


class _Acceptance(_Group):
    memory = ("now", "accepts", "agreements", "counts")

    def reset(self, s: Signals) -> None:
        zero = self.ops.constant(0, s.base_top1)
        # Newest first; what is not filled yet is 0.
        self.accepts, self.agreements = (deque([zero] * _RECENT, _RECENT) for _ in range(2))
        # How many of the accepts and of the agreements are filled.
        self.counts = [zero, zero]
        self.now = [zero] * 7

    def step(self, s: Signals) -> None:
        ops, (steps, drafts), now = self.ops, self.counts, self.now
        accepts, agreements, right = self.accepts, self.agreements, s.first_draft_right
        accept = ops.minimum(s.accept_length / self.divisor, 1.0)
        # The average of one value is that value; before it, it is 0.
        first = accept * (steps == 0)
        fast, slow = now[1] + first, now[2] + first
        accepts.appendleft(accept)
        ops.push(agreements, right)
        steps = steps + (steps < _RECENT)
        drafts = drafts + ((right == right) & (drafts < _RECENT))
        self.counts = [steps, drafts]
        least, greatest = ops.extremes(accepts, steps)
        self.now = [
            accept,
            fast + _FAST * (accept - fast),
            slow + _SLOW * (accept - slow),
            sum(accepts) / steps,
            least,
            greatest,
            sum(agreements) / (drafts + (drafts == 0)),
        ]


class _Position(_Group):
    def reset(self, s: Signals) -> None:
        self.now = [s.generated_fraction, s.context_fraction, self.ops.constant(0.0, s.base_top1)]

    def step(self, s: Signals) -> None:
        self.now = [s.generated_fraction, s.context_fraction, s.action / (self.num_trees - 1 or 1)]


class _Token(_Group):
    def reset(self, s: Signals) -> None:
        self.now = [*s.root_shape]

    step = reset


class _Trees(_Group):
    def reset(self, s: Signals) -> None:
        if s.tree_value is None:
            raise ValueError("the feature group 'trees' needs Signals.tree_value, a value per tree; got None")
        self.now = [*s.tree_value]

    step = reset


_GROUPS: dict[str, type[_Group]] = {
    "base": _Base,
    "entropy": _Entropy,
    "heads": _Heads,
    "acceptance": _Acceptance,
    "position": _Position,
    "token": _Token,
    "trees": _Trees,
}
