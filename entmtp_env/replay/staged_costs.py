"""Seconds of the decisions of a staged scheduler, from the costs of decode steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import Stages
from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import DraftTree, TopologyBank


@dataclass(frozen=True, eq=False)
class StagedCosts:
    """Seconds of each decision.

    Attributes:
        draft_seconds: Drafting one depth.
        verify_seconds: All of a step but its drafting, by budget and committed tokens, float64 ``(m, N)``.
        prefill_seconds: Prefill of a prompt of that length, float64 ``(N,)``.
    """

    draft_seconds: float
    verify_seconds: npt.NDArray[np.float64]
    prefill_seconds: npt.NDArray[np.float64]


def staged_formula(costs: CostTable | AnalyticCosts) -> AnalyticCosts:
    """Costs of trees that were not measured: of a measured table the fit, since its trees are others.

    Raises:
        ValueError: When they, or what they were fitted to, were measured with a probe, which would be counted
            as drafting or verifying.
    """
    formula = AnalyticCosts.fit(costs) if isinstance(costs, CostTable) else costs
    if formula.probed not in (None, "none"):
        raise ValueError(
            f"the costs {costs.name!r} were measured with probe={formula.probed!r}, and in stages nothing is "
            "probed; measure them with 'python -m train costs --probe none'"
        )
    return formula


def staged_costs(formula: AnalyticCosts, stages: Stages, lengths: npt.NDArray[np.integer]) -> StagedCosts:
    """Price the decisions of a staged scheduler.

    Args:
        formula: Seconds of decode steps.
        stages: Budgets.
        lengths: Committed tokens when the step begins, ``(N,)``.
    """
    step = formula.at(as_bank(stages), lengths)
    return StagedCosts(formula.depth, step.seconds - step.draft_seconds, step.prefill_seconds)


def as_bank(stages: Stages) -> TopologyBank:
    """A bank with a tree of each budget's size, in their order: what is verified costs by size alone."""
    trees = [DraftTree(f"verify-{n}", tuple((rank,) for rank in range(n))) for n in stages.budgets]
    return TopologyBank(trees, stages.name)
