"""Seconds of a step for the policies that weigh tokens against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from entmtp_env.replay.costs import AnalyticCosts, CostTable, InterpolatedCosts, load_costs, warn_of_others
from policies.base import SchedulingEnv
from policies.options import names

_SAME = ("model_fingerprint", "device")


def load_prices(
    env: SchedulingEnv, costs: str | Sequence[str]
) -> CostTable | InterpolatedCosts | AnalyticCosts:
    """Costs from a policy's option, by default the shipped ones.

    Warns when the default is of another model or device than those of the environment, which are loaded for
    that: it is about to decode with them.

    Args:
        env: The environment to schedule.
        costs: See :func:`~entmtp_env.replay.costs.load_costs`, with ``|`` between the numbers of a formula;
            empty for the default.

    Raises:
        FileNotFoundError: When there are no such costs, or the model is not to be had.
        ValueError: When the costs are damaged.
    """
    if costs:
        return load_costs(",".join(names("costs", costs)))
    prices = load_costs("auto")
    unwrapped: Any = env.unwrapped
    here: Mapping[str, Any] = getattr(unwrapped, "manifest", {})
    warn_of_others(prices, here, _SAME)
    return prices
