"""Expected tokens from a network, seconds from a cost table: the tree that is worth its time here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.costs import check_probe
from policies.base import Memory, SchedulingEnv
from policies.network import Network
from policies.network_policy import NetworkPolicy
from policies.options import names, number
from policies.prices import load_prices


class Value(NetworkPolicy):
    """The tree with the greatest ``E[tokens_a | observation] − ρ · seconds_a``: ``value@file.npz``.

    Renewal-reward decision making (Dinkelbach, 1967): with ρ the throughput that the text can be decoded at,
    a second is worth ρ tokens, and no rule that looks one step ahead emits more per second. The network knows
    nothing of time, so other costs need no other training: ``value:costs=here.json@file.npz``.

    Args:
        env: The environment to schedule; it must observe ``context_fraction``.
        network: F observations to the expected tokens of a step, accepted drafts + 1, with each of K trees.
        costs: Seconds of a step, see :func:`~entmtp_env.replay.costs.load_costs`; in a spec the numbers of a
            formula are separated by ``|``, as in ``analytic:base=0.03|node=0.001``. By default those of the
            replay that it runs in, live ``"auto"``, with a warning where that is of another model or device.
        rate: ρ in tokens per second. By default it follows each text: what the steps up to and with this one
            were expected to emit, over their seconds.
        file: Where the network was read from; it only shows in `spec`.

    Raises:
        ValueError: When the network or the costs do not fit, the rate is not positive, or the environment
            lacks the feature.
        FileNotFoundError: When there are no such costs.
    """

    name = "value"

    def __init__(
        self,
        env: SchedulingEnv,
        network: Network,
        costs: str | Sequence[str] = "",
        rate: float | None = None,
        file: str = "",
    ) -> None:
        super().__init__(env, network, file)
        self._column = self.feature("context_fraction")
        unwrapped: Any = env.unwrapped
        self._capacity: int = unwrapped.capacity
        options: dict[str, Any] = {}
        if costs or not hasattr(unwrapped, "tables"):
            prices = load_prices(env, costs)
            check_probe(prices, unwrapped.feature_set.probe)
            # By tree and committed tokens, (K, capacity + 1).
            seconds = prices.at(self.bank, np.arange(self._capacity + 1)).seconds
            options = {"costs": names("costs", costs)} if costs else {}
        else:
            seconds = unwrapped.tables.costs.seconds
        # A row is all that a decision needs.
        self._seconds = np.ascontiguousarray(seconds.T)
        self._rate = None if rate is None else number("rate", rate)
        if self._rate is not None:
            if self._rate <= 0:
                raise ValueError(f"policy 'value': rate={rate} tokens per second must be positive")
            options["rate"] = self._rate
        self.options = options

    def initial_memory(self, n: int) -> Memory:
        """Expected tokens and seconds of the steps so far, each ``(n,)``; nothing when ρ is given."""
        return (np.zeros(n), np.zeros(n)) if self._rate is None else ()

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """Weigh the expected tokens of each tree against its seconds at this context length."""
        # Every step emits a token, whatever the network says.
        tokens = np.maximum(self.network(observations), 1).astype(np.float64)
        contexts = np.rint(observations[:, self._column] * self._capacity).astype(np.int64)
        seconds = self._seconds[contexts]
        if self._rate is not None:
            return (tokens - self._rate * seconds).argmax(axis=1), memory
        rows = np.arange(len(tokens))
        fastest = (tokens / seconds).argmax(axis=1)
        rate = (memory[0] + tokens[rows, fastest]) / (memory[1] + seconds[rows, fastest])
        actions = (tokens - rate[:, None] * seconds).argmax(axis=1)
        return actions, (memory[0] + tokens[rows, actions], memory[1] + seconds[rows, actions])
