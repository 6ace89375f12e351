"""Staged schedulers: how deep to draft by thresholds on path values, how many nodes to verify by cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import DEEPER, Stages
from entmtp_env.replay.staged_costs import StagedCosts, staged_costs, staged_prices
from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.options import names, number, whole_number
from policies.prices import load_prices

_START = 0.25
"""Threshold on the best path value that stands until calibration finds better ones."""


class StagedThreshold(SchedulerPolicy):
    """Go deeper while the best path value clears the depth's threshold, then verify the nodes that pay.

    That is the number of best nodes with the greatest ``1 + Σ path values − ρ · seconds of verifying them``:
    with ρ the throughput that the text can be decoded at, a second is worth ρ tokens (Dinkelbach, 1967).

    Args:
        env: A staged environment; it must observe ``context_fraction``, and ``base_top1`` when the first
            threshold is above 0 and can be cleared.
        thresholds: One a depth (``0|0.3|0.2|0.2`` in a spec): the d-th depth is drafted when the best path
            value of the depth before is at least the d-th. For the first it is the base model's top-1
            probability, ``base_top1``. By default 0, then 0.25, to be replaced by calibration.
        nodes: Verify so many nodes, or as many of the budgets as there are drafted, instead of what pays.
        costs: Seconds of a step, see :func:`~entmtp_env.replay.costs.load_costs`; in a spec the numbers of a
            formula are separated by ``|``, as in ``analytic:base=0.03|node=0.001``. By default those of the
            replay that it runs in, live ``"auto"``, with a warning where that is of another model or device.
        rate: ρ in tokens per second. By default it follows each text: what the steps up to and with this one
            were expected to emit, over their seconds.

    Raises:
        ValueError: When the environment has no stages or lacks a feature, or an option does not fit.
        FileNotFoundError: When there are no such costs.
    """

    name = "staged-threshold"
    env_id = "EntMTP/Staged-v0"

    def __init__(
        self,
        env: SchedulingEnv,
        thresholds: str | float | Sequence[float] | None = None,
        nodes: int | None = None,
        costs: str | Sequence[str] = "",
        rate: float | None = None,
    ) -> None:
        super().__init__(env)
        unwrapped: Any = env.unwrapped
        if not isinstance(getattr(unwrapped, "stages", None), Stages):
            raise ValueError(f"policy {self.name!r} needs a staged environment, such as EntMTP/Staged-v0")
        stages: Stages = unwrapped.stages
        default = [0.0, *[_START] * (stages.depth - 1)]
        self._thresholds = _thresholds(default if thresholds is None else thresholds, stages.depth)
        # Where the first depth is drafted always or never, any feature decides that; one costs nothing.
        first = "base_top1" if 0 < self._thresholds[0] <= 1 else "stage"
        scores = [first, *(f"depth_{depth}_value_1" for depth in range(1, stages.depth))]
        self._scores = [self.feature(name) for name in scores]
        self._values = [self.feature(f"budget_{budget}_value") for budget in stages.budgets[1:]]
        self._stage, self._context = self.feature("stage"), self.feature("context_fraction")
        self._depth, self._capacity = stages.depth, unwrapped.capacity
        self._legal = stages.masks[:, 1:]
        self._legal_budgets = self._legal.sum(axis=1).tolist()
        options: dict[str, Any] = {"thresholds": tuple(self._thresholds.tolist())}
        self._nodes = None if nodes is None else whole_number("nodes", nodes, 0)
        if self._nodes is not None:
            options["nodes"] = self._nodes
            allowed = self._legal & (np.array(stages.budgets) <= self._nodes)
            self._fixed = allowed.shape[1] - 1 - allowed[:, ::-1].argmax(axis=1)
        else:
            self._price(env, stages, costs)
        if costs:
            options["costs"] = names("costs", costs)
        self._rate = None if rate is None else number("rate", rate)
        if self._rate is not None:
            if self._rate <= 0:
                raise ValueError(f"policy {self.name!r}: rate={rate} tokens per second must be positive")
            options["rate"] = self._rate
        self.options = options

    def initial_memory(self, n: int) -> Memory:
        """Expected tokens and seconds of the steps so far, each ``(n,)``; nothing when they do not matter."""
        return () if self._fixes else (np.zeros(n), np.zeros(n))

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """Deeper, or the best budget, for each environment."""
        rows = np.arange(len(observations))
        drafted = np.rint(observations[:, self._stage] * self._depth).astype(np.int64)
        # Behind the last depth there is nothing to clear.
        next_depth = np.minimum(drafted, self._depth - 1)
        score = observations[rows, np.take(self._scores, next_depth)]
        deeper = (drafted < self._depth) & (score >= self._thresholds[next_depth])
        if self._nodes is not None:
            return np.where(deeper, DEEPER, 1 + self._fixed[drafted]), memory
        if deeper.all():
            return np.zeros_like(drafted), memory
        tokens = np.ones(self._legal[drafted].shape)
        tokens[:, 1:] += observations[:, self._values]
        contexts = np.rint(observations[:, self._context] * self._capacity).astype(np.int64)
        seconds = self._seconds[contexts]
        if self._rate is not None:
            gain = np.where(self._legal[drafted], tokens - self._rate * seconds, -np.inf)
            return np.where(deeper, DEEPER, 1 + gain.argmax(axis=1)), memory
        spent = memory[1] + self._drafting[contexts, drafted]
        # With ρ the best of these rates, the best of them is what gains most by it, too.
        rates = (memory[0][:, None] + tokens) / (spent[:, None] + seconds)
        best = np.where(self._legal[drafted], rates, 0).argmax(axis=1)
        after = memory[0] + tokens[rows, best], spent + seconds[rows, best]
        kept = tuple(np.where(deeper, old, new) for old, new in zip(memory, after, strict=True))
        return np.where(deeper, DEEPER, 1 + best), kept

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], Memory | None]:
        """Choose actions as the base class does; for one observation in plain floats, which is faster."""
        if observation.shape != (len(self.feature_names),):
            return super().predict(observation, state, episode_start, deterministic)
        action, memory = self._decide(observation.tolist(), self._resume(1, state, episode_start))
        return np.array(action), memory or None

    def _decide(self, seen: list[float], memory: Memory) -> tuple[int, Memory]:
        """:meth:`act` for one environment."""
        drafted = round(seen[self._stage] * self._depth)
        if drafted < self._depth and seen[self._scores[drafted]] >= self._thresholds[drafted]:
            return DEEPER, memory
        if self._nodes is not None:
            return 1 + int(self._fixed[drafted]), memory
        context = round(seen[self._context] * self._capacity)
        seconds = self._seconds[context].tolist()
        # Of the budgets, which rise, the first so many are legal; the first of all is none.
        values = self._values[: self._legal_budgets[drafted] - 1]
        tokens = [1.0, *[1 + seen[value] for value in values]]
        if self._rate is not None:
            gains = [t - self._rate * s for t, s in zip(tokens, seconds, strict=False)]
            return 1 + gains.index(max(gains)), memory
        before, spent = memory[0].item(), memory[1].item() + self._drafting.item(context, drafted)
        rates = [(before + t) / (spent + s) for t, s in zip(tokens, seconds, strict=False)]
        best = rates.index(max(rates))
        return 1 + best, (np.array([before + tokens[best]]), np.array([spent + seconds[best]]))

    @property
    def _fixes(self) -> bool:
        return self._nodes is not None or self._rate is not None

    def _price(self, env: SchedulingEnv, stages: Stages, costs: str | Sequence[str]) -> None:
        unwrapped: Any = env.unwrapped
        if costs or not hasattr(unwrapped, "costs"):
            known = staged_prices(load_prices(env, costs))
            prices = staged_costs(known, stages, np.arange(self._capacity + 1))
        else:
            prices = unwrapped.costs
        self._costs: StagedCosts = prices
        # A row is all that a decision needs.
        self._seconds = np.ascontiguousarray(prices.verify_seconds.T)
        self._drafting = np.ascontiguousarray(prices.drafted_seconds.T)


class Eagle2(StagedThreshold):
    """EAGLE-2 (arXiv 2406.16858): draft all depths, verify a fixed number of the best nodes.

    Args:
        env: A staged environment.
        nodes: How many; by default the largest budget.
    """

    name = "eagle2"

    def __init__(self, env: SchedulingEnv, nodes: int | None = None) -> None:
        unwrapped: Any = env.unwrapped
        most = getattr(unwrapped.bank, "max_nodes", 0)
        super().__init__(env, _always(env), nodes=most if nodes is None else nodes)
        self.options = {"nodes": self.options["nodes"]}


class Eagle2CostAware(StagedThreshold):
    """EAGLE-2 with the number of nodes that pays: draft all depths, then as :class:`StagedThreshold`.

    Args:
        env: A staged environment.
        costs: As there.
        rate: As there.
    """

    name = "eagle2-cost-aware"

    def __init__(
        self, env: SchedulingEnv, costs: str | Sequence[str] = "", rate: float | None = None
    ) -> None:
        super().__init__(env, _always(env), costs=costs, rate=rate)
        self.options = {key: value for key, value in self.options.items() if key != "thresholds"}


def _always(env: SchedulingEnv) -> list[float]:
    unwrapped: Any = env.unwrapped
    return [0.0] * unwrapped.bank.depth


def _thresholds(value: str | float | Sequence[float], depth: int) -> npt.NDArray[np.float64]:
    parts: Any = value.split("|") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        parts = [parts]
    if len(parts) != depth:
        raise ValueError(f"option thresholds={value!r} must be {depth} numbers, one for each depth")
    return np.array([number("thresholds", part) for part in parts])
