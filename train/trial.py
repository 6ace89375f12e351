"""A calibration's measurements: what a policy did on all texts, and where that is found out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from entmtp_env.trees import TopologyBank
from policies.base import SchedulerPolicy, SchedulingEnv
from train.candidates import StaticRuns

Scores = Mapping[str, npt.NDArray[np.floating[Any]]]
"""By feature: its values at every decision, ``(decisions,)``."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A policy, and what it did on the calibration texts.

    Attributes:
        policy: The policy.
        tokens: Tokens of all texts.
        steps: Decode steps of all texts.
        seconds: Their time; live, the policy's own counts.
        scores: The features that were to be noted.
    """

    policy: SchedulerPolicy
    tokens: int
    steps: int
    seconds: float
    scores: Scores = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per second, over all texts."""
        return self.tokens / self.seconds

    @property
    def tau(self) -> float:
        """Tokens per step, over all texts."""
        return self.tokens / self.steps


class Bench(Protocol):
    """Where policies are tried: a live decoder, or a recording."""

    @property
    def env(self) -> SchedulingEnv:
        """What policies are built for."""
        ...

    @property
    def record(self) -> dict[str, Any]:
        """Which texts, and all that the results depend on; JSON values."""
        ...

    def warm_up(self) -> None:
        """Have all first-use costs behind oneself."""
        ...

    def run(self, policies: Sequence[SchedulerPolicy], task: str, scores: Sequence[str] = ()) -> list[Trial]:
        """Run every policy on every text.

        Args:
            policies: What to run.
            task: Title of the progress bar, as in "trees".
            scores: Features to note at every decision.

        Raises:
            RuntimeError: When a step fails, as on a device out of memory.
        """
        ...


def static_runs(bank: TopologyBank, trials: Sequence[Trial]) -> StaticRuns:
    """Sum up the runs of every tree of ``bank``, in its order."""
    own = dict(zip(bank.names, trials, strict=True))
    return StaticRuns(
        bank,
        {name: trial.rate for name, trial in own.items()},
        {name: trial.scores for name, trial in own.items()},
    )
