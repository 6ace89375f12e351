"""What a staged scheduler sees: the running features, and the path values of what is drafted so far."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.stages import Stages
from entmtp_env.features import FeatureSet
from entmtp_env.tracker import FeatureTracker, Signals

GROUPS = ("base", "entropy", "acceptance", "position", "token")
"""Groups of :mod:`entmtp_env.features` that make sense here; the features of the stages replace ``heads``."""
TOP = 3
"""How many of a depth's path values are observed."""

Floats = npt.NDArray[np.floating[Any]]


class StagedFeatures:
    """Names, order and bounds of the features of a staged environment.

    Behind the groups of :mod:`entmtp_env.features` (``last_tree`` is the last budget) come ``stage``, drafted
    depths ÷ D; per depth d its highest path values ``depth_{d}_value_{1, 2, 3}``, their sum over the depth
    ``depth_{d}_sum``, at most 1, and ``depth_{d}_entropy``, the entropy of the values divided by their sum, ÷
    ln of their number; and per budget ``budget_{n}_value``, the sum of the n highest path values of all
    depths, which is how many drafts verifying them is expected to accept. What is not drafted yet is 0.

    Args:
        stages: Widths and budgets.
        groups: ``"all"``, or names of :data:`GROUPS`, comma-separated or as a sequence.

    Attributes:
        base: The features before those of the stages.
        names: All names, F of them.
        setting: As in :class:`~entmtp_env.features.FeatureSet`.
        low: Lower bounds, float32 ``(F,)``.
        high: Upper bounds, float32 ``(F,)``.
        fingerprint: Hash of the ordered names and of the depth.
        probe: ``"none"``: drafting is what the decisions are about.

    Raises:
        ValueError: When a group is unknown.
    """

    probe = "none"

    def __init__(self, stages: Stages, groups: Sequence[str] = "all") -> None:
        wanted = set(groups.split(",") if isinstance(groups, str) else groups)
        chosen = GROUPS if wanted == {"all"} else tuple(wanted)
        if unknown := sorted(set(chosen) - set(GROUPS)):
            raise ValueError(
                f"staged environments have no feature groups {', '.join(unknown)}; choose 'all' or some of "
                f"{', '.join(GROUPS)}"
            )
        self.base = FeatureSet(stages.depth, stages.budgets, chosen)
        self.setting = "all" if set(chosen) == set(GROUPS) else self.base.setting
        budgets = [f"budget_{budget}_value" for budget in stages.budgets[1:]]
        own = ["stage", *(f"depth_{d + 1}_{kind}" for d in range(stages.depth) for kind in _KINDS), *budgets]
        self.names = (*self.base.names, *own)
        bounds = np.ones(len(own), dtype=np.float32)
        bounds[len(own) - len(budgets) :] = stages.depth
        self.low = np.concatenate((self.base.low, np.zeros_like(bounds)))
        self.high = np.concatenate((self.base.high, bounds))
        self.fingerprint = hashlib.sha256(repr((self.names, stages.depth)).encode()).hexdigest()[:16]


_KINDS = (*(f"value_{i + 1}" for i in range(TOP)), "sum", "entropy")


def depth_features(values: Floats) -> npt.NDArray[np.float32]:
    """The features of one drafted depth.

    Args:
        values: Path values of its nodes, ``(..., nodes)``.

    Returns:
        The three highest (0 where there are fewer), sum and entropy, float32 ``(..., 5)``.
    """
    count = values.shape[-1]
    features = np.zeros((*values.shape[:-1], len(_KINDS)), dtype=np.float32)
    features[..., : min(TOP, count)] = np.sort(values, axis=-1)[..., : -TOP - 1 : -1]
    total = values.sum(axis=-1)
    features[..., TOP] = np.minimum(total, 1)
    if count > 1:
        # The entropy of values ÷ total; tiny numbers stand in for 0, where its terms vanish.
        total = np.maximum(total, _TINY)
        mean = (values * np.log(np.maximum(values, _TINY))).sum(axis=-1) / total
        features[..., TOP + 1] = np.maximum(np.log(total) - mean, 0) / math.log(count)
    return features


_TINY = 1e-30


def budget_features(stages: Stages, descending: Floats) -> npt.NDArray[np.float32]:
    """What each budget above 0 is expected to accept.

    Args:
        stages: Its budgets.
        descending: Path values of the drafted nodes, the highest first, ``(..., nodes)``; one node at least.

    Returns:
        Sums of the highest, as many as the budget has and are drafted, float32 ``(..., budgets - 1)``.
    """
    last = _last_nodes(stages.budgets, descending.shape[-1])
    return descending.cumsum(axis=-1)[..., last].astype(np.float32)


@cache
def _last_nodes(budgets: tuple[int, ...], drafted: int) -> npt.NDArray[np.int64]:
    """Where each budget above 0 ends among so many nodes."""
    return np.minimum(np.array(budgets[1:], dtype=np.int64), drafted) - 1


class StagedTracker(FeatureTracker):
    """The running features of one environment, and beside them those of the draft.

    Args:
        features: The features.
        stages: Widths and budgets.
    """

    def __init__(self, features: StagedFeatures, stages: Stages) -> None:
        super().__init__(features.base)
        self._stages, self._bounds = stages, features.high
        self._vector = np.zeros(len(features.names), dtype=np.float32)
        self._stage = len(features.base.names)
        self._budgets = self._stage + 1 + len(_KINDS) * stages.depth

    def reset(self, signals: Signals) -> None:
        """Start an episode; nothing is drafted."""
        super().reset(signals)
        self._commit()

    def step(self, signals: Signals) -> None:
        """Advance by one decode step; nothing is drafted below the new root."""
        super().step(signals)
        self._commit()

    def deepen(
        self, depth: int, of_depth: Sequence[float] | Floats, of_budgets: Sequence[float] | Floats
    ) -> None:
        """Take in one more drafted depth.

        Args:
            depth: Which one: 1, 2, ..., D.
            of_depth: Its :func:`depth_features`.
            of_budgets: The :func:`budget_features` of all that is drafted.
        """
        start = self._stage + 1 + len(_KINDS) * (depth - 1)
        self._vector[self._stage] = depth / self._stages.depth
        self._vector[start : start + len(_KINDS)] = of_depth
        self._vector[self._budgets :] = of_budgets

    def observe(self) -> npt.NDArray[np.float32]:
        """All features now, a fresh array ``(F,)``."""
        return np.minimum(self._vector, self._bounds)

    def _commit(self) -> None:
        self._vector[: self._stage] = super().observe()
        self._vector[self._stage :] = 0


def observe_draft(tracker: StagedTracker, table: NodeTable) -> None:
    """Show a tracker the depth that was drafted last."""
    tracker.deepen(table.depth, _of_depth(table.level), _of_budgets(table.stages.budgets, table.descending))


def _of_depth(values: Sequence[float]) -> list[float]:
    """:func:`depth_features` in plain floats."""
    count, total = len(values), sum(values)
    top = sorted(values, reverse=True)[:TOP]
    entropy = 0.0
    if count > 1:
        mean = sum(value * math.log(max(value, _TINY)) for value in values) / max(total, _TINY)
        entropy = max(math.log(max(total, _TINY)) - mean, 0.0) / math.log(count)
    return [*top, *[0.0] * (TOP - len(top)), min(total, 1.0), entropy]


def _of_budgets(budgets: Sequence[int], descending: Sequence[float]) -> list[float]:
    """:func:`budget_features` in plain floats."""
    sums = [0.0, *accumulate(descending)]
    return [sums[min(budget, len(descending))] for budget in budgets[1:]]
