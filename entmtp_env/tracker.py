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

_ENTROPY_ALPHAS = [2.0 / (window + 1) for window in ENTROPY_WINDOWS]
_ACCEPT_ALPHAS = [2.0 / (window + 1) for window in ACCEPT_WINDOWS]
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
        learns what deep trees promise.

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
    """The few operations that floats and arrays do not share; the last three take lists of values.

    Attributes:
        constant: A number in the form of the value beside it.
        minimum: The lesser of two values.
        least: The least value.
        greatest: The greatest value.
        select: The first list where the condition holds, else the second.
        known: The first list where it is known, else the second: behind its end, or where an array has NaN.
    """

    constant: Callable[[float, Value], Value]
    minimum: Callable[[Value, Value], Value]
    least: Callable[[Iterable[Value]], Value]
    greatest: Callable[[Iterable[Value]], Value]
    select: Callable[[Value, list[Value], list[Value]], list[Value]]
    known: Callable[[Sequence[Value], list[Value]], list[Value]]

    def __reduce__(self) -> str:
        """Pickle the name of the constant: lambdas have none."""
        return "_FLOATS" if self is _FLOATS else "_ARRAYS"


_FLOATS = _Ops(
    constant=lambda value, like: value,
    minimum=min,
    least=min,
    greatest=max,
    select=lambda condition, yes, no: yes if condition else no,
    known=lambda new, old: [*new, *old[len(new) :]],
)
_ARRAYS = _Ops(
    constant=lambda value, like: np.full_like(like, value),
    minimum=np.minimum,
    least=lambda values: reduce(np.minimum, values),
    greatest=lambda values: reduce(np.maximum, values),
    select=lambda condition, yes, no: [np.where(condition, a, b) for a, b in zip(yes, no, strict=True)],
    known=lambda new, old: [np.where(a != a, b, a) for a, b in zip(new, old, strict=True)],
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
        new = s.base_entropy
        averages = zip(self.now, _ENTROPY_ALPHAS)  # noqa: B905 - strict takes a fifth more
        self.now = [average + alpha * (new - average) for average, alpha in averages]


class _Heads(_Group):
    memory = ("now", "confidence", "entropy")

    def reset(self, s: Signals) -> None:
        one, zero = (self.ops.constant(value, s.base_top1) for value in (1.0, 0.0))
        self.confidence, self.entropy = [one] * self.depth, [zero] * self.depth
        self.step(s)

    def step(self, s: Signals) -> None:
        p0, known = s.base_top1, self.ops.known
        self.confidence = known(s.head_top1, self.confidence)
        self.entropy = known(s.head_entropy, self.entropy)
        paths: list[Value] = []
        survive: Value = 1.0
        expected = self.ops.constant(0.0, p0)
        for confidence in self.confidence:
            survive = survive * confidence
            expected = expected + survive
            paths.append(p0 * survive)
        # The published max(p_0, g_1 ... g_D); every p_i <= 1, so it is always p_0.
        best, deep = p0, paths[-1] if paths else p0
        self.now = [*paths, *self.entropy, best, deep, expected / (self.depth or 1)]


class _Acceptance(_Group):
    memory = ("now", "accepts", "accepts_or_1", "agreements", "counts")

    def reset(self, s: Signals) -> None:
        one, zero = (self.ops.constant(value, s.base_top1) for value in (1.0, 0.0))
        # Newest first. What is not filled yet is out of the way of a sum and a maximum, or of a minimum.
        self.accepts = deque([zero] * _RECENT, _RECENT)
        self.accepts_or_1 = deque([one] * _RECENT, _RECENT)
        self.agreements = [zero] * _RECENT
        # How many of the accepts and of the agreements are filled.
        self.counts = [zero, zero]
        self.now = [zero] * 7

    def step(self, s: Signals) -> None:
        ops, (steps, drafts), (fast, slow) = self.ops, self.counts, self.now[1:3]
        accept = ops.minimum(s.accept_length / (self.depth or 1), 1.0)
        # The average of one value is that value.
        fast, slow = ops.select(steps == 0, [accept, accept], [fast, slow])
        self.accepts.appendleft(accept)
        self.accepts_or_1.appendleft(accept)
        right, agreements = s.first_draft_right, self.agreements
        drafted = right == right
        agreements = self.agreements = ops.select(drafted, [right, *agreements[:-1]], agreements)
        steps = steps + (steps < _RECENT)
        drafts = drafts + (drafted & (drafts < _RECENT))
        self.counts = [steps, drafts]
        self.now = [
            accept,
            fast + _ACCEPT_ALPHAS[0] * (accept - fast),
            slow + _ACCEPT_ALPHAS[1] * (accept - slow),
            sum(self.accepts) / steps,
            ops.least(self.accepts_or_1),
            ops.greatest(self.accepts),
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
