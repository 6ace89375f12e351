"""Seconds of the decisions of a staged scheduler, from the costs of decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import Stages
from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.interpolated_costs import InterpolatedCosts
from entmtp_env.trees import DraftTree, TopologyBank


@dataclass(frozen=True, eq=False)
class StagedCosts:
    """Seconds of each decision.

    Attributes:
        draft_seconds: Drafting each depth behind those before it, by committed tokens, float64 ``(D, N)``.
        verify_seconds: All of a step but its drafting, by budget and committed tokens, float64 ``(m, N)``.
        prefill_seconds: Prefill of a prompt of that length, float64 ``(N,)``.
    """

    draft_seconds: npt.NDArray[np.float64]
    verify_seconds: npt.NDArray[np.float64]
    prefill_seconds: npt.NDArray[np.float64]

    @cached_property
    def drafted_seconds(self) -> npt.NDArray[np.float64]:
        """Drafting the first 0, 1, ... depths, float64 ``(D + 1, N)``."""
        return np.concatenate((np.zeros_like(self.draft_seconds[:1]), self.draft_seconds.cumsum(axis=0)))


def staged_prices(
    costs: CostTable | InterpolatedCosts | AnalyticCosts,
) -> InterpolatedCosts | AnalyticCosts:
    """Costs of trees that were not measured: a table is interpolated, since its trees are others.

    Raises:
        ValueError: When they, or what they were fitted to, were measured with a probe, which would be counted
            as drafting or verifying.
    """
    probe = costs.probed if isinstance(costs, AnalyticCosts) else costs.probe
    if probe not in (None, "none"):
        raise ValueError(
            f"the costs {costs.name!r} were measured with probe={probe!r}, and in stages nothing is "
            "probed; measure them with 'python -m train costs --probe none'"
        )
    return InterpolatedCosts(costs) if isinstance(costs, CostTable) else costs


def staged_costs(
    prices: InterpolatedCosts | AnalyticCosts, stages: Stages, lengths: npt.NDArray[np.integer]
) -> StagedCosts:
    """Price the decisions of a staged scheduler.

    Args:
        prices: Seconds of decode steps with any trees.
        stages: Depths and budgets.
        lengths: Committed tokens when the step begins, ``(N,)``.
    """
    step = prices.at(as_bank(stages), lengths)
    chains = TopologyBank([DraftTree.chain(depth) for depth in range(stages.depth + 1)])
    drafted = prices.at(chains, lengths).draft_seconds
    # Drafting two depths takes no less time than one, whatever a measurement says.
    draft = np.maximum(np.diff(drafted, axis=0), 0)
    return StagedCosts(draft, step.seconds - step.draft_seconds, step.prefill_seconds)


def as_bank(stages: Stages) -> TopologyBank:
    """A bank with a tree of each budget's size, in their order: what is verified costs by size alone."""
    trees = [DraftTree(f"verify-{n}", tuple((rank,) for rank in range(n))) for n in stages.budgets]
    return TopologyBank(trees, stages.name)
