"""Networks taught what every tree would have done: recordings tell of all trees, not only of those taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.base import SchedulingEnv
from policies.learned import Learned
from policies.network import Network
from policies.network_policy import NetworkPolicy
from policies.random import Random
from policies.static import Static
from policies.value import Value
from train.student import Examples, Student, expected_cost, squared_error
from train.visits import Visits, visit

if TYPE_CHECKING:
    from train.value import ValueTraining

Method = Literal["value", "imitation", "improvement"]
Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_EXPLORE = 0.2
"""Share of random trees while visits are collected."""
_VALIDATION = 5
"""One of so many training texts decides when to stop."""


class Supervision:
    """Training texts, and the visits that every method begins with: those of random and of static trees.

    Args:
        config: Settings.
        envs: An environment for each training text; no schedule ends one early.
        bar: Shows the progress.

    Attributes:
        envs: The environments.
        oracle: The best schedules of the texts.

    Raises:
        ValueError: When there are fewer than two texts.
    """

    def __init__(self, config: ValueTraining, envs: ReplayVectorEnv, bar: Progress) -> None:
        if envs.num_envs < 2:
            raise ValueError("one text to train on leaves none to decide when to stop; name more recordings")
        self.envs, self.oracle = envs, solve(envs.tables)
        self._config, self._bar = config, bar
        self._rng = np.random.default_rng(config.seed)
        order = self._rng.permutation(envs.num_envs)
        count = max(1, envs.num_envs // _VALIDATION)
        self._validation, self._training = order[:count], order[count:]
        env = cast(SchedulingEnv, envs)
        beginners = [Random(env, config.seed), *(Static(env, tree.name) for tree in envs.bank)]
        self._first = [
            visit(envs, policy, _EXPLORE, self._rng)
            for policy in bar.track(beginners, description="first visits")
        ]

    def teach(self, method: Method) -> Network:
        """Train one network; in every round after the first, its own decisions lead to further visits."""
        rounds, epochs, visits = self._config.rounds, self._config.epochs, list(self._first)
        loss = squared_error if method == "value" else expected_cost
        student = Student(self._examples(method, Visits.join(visits)), loss, self._config.seed)
        task = self._bar.add_task(f"training {method}", total=(rounds + 1) * epochs)
        for step in range(rounds + 1):
            if step:
                policy = make_policy(method, student.network(), self.envs)
                visits.append(visit(self.envs, policy, _EXPLORE, self._rng))
            joined = Visits.join(visits)
            training, validation = (
                self._examples(method, joined.of(texts)) for texts in (self._training, self._validation)
            )
            student.learn(training, validation, epochs, lambda: self._bar.advance(task))
        return student.network()

    def _examples(self, method: Method, visits: Visits) -> Examples:
        tables, rows = self.envs.tables, visits.rows
        if method == "value":
            return visits.observations, token_targets(tables, rows)
        static = self.oracle.static_values[self.oracle.best_static]
        behind = self.oracle.values if method == "imitation" else static
        return visits.observations, cost_targets(tables, behind, rows)


def token_targets(tables: ReplayTables, rows: Rows) -> Floats:
    """Tokens that a step with each tree emits at some rows, as if no text ended, ``(M, K)``."""
    tokens: Floats = tables.accepts[:, rows].T.astype(np.float64) + 1
    return tokens


def cost_targets(tables: ReplayTables, behind: Floats, rows: Rows) -> Floats:
    """Seconds that each tree loses to the best one at some rows, ``(M, K)``.

    Args:
        tables: The recording, priced.
        behind: Seconds from each row to the end of its text by the schedule that goes on behind the step.
        rows: The rows, ``(M,)``.
    """
    seconds = tables.costs.seconds[:, tables.contexts[rows]]
    totals = seconds + behind[rows + tables.emitted[:, rows]]
    lost: Floats = (totals - totals.min(axis=0)).T
    return lost


def make_policy(method: Method, network: Network, envs: ReplayVectorEnv) -> NetworkPolicy:
    """The policy that a network was trained for."""
    # Policies read the bank, the feature names and the costs, and a vector environment has them.
    env = cast(SchedulingEnv, envs)
    return Value(env, network) if method == "value" else Learned(env, network)


def token_accuracy(network: Network, recordings: Iterable[ReplayVectorEnv]) -> dict[str, float]:
    """R² of the expected tokens of each tree that drafts, where the policy's own decisions lead.

    Args:
        network: Expected tokens.
        recordings: An environment for each text of a recording.

    Returns:
        By tree; trees of which all steps emit the same are left out.
    """
    names: tuple[str, ...] = ()
    predicted, true = [], []
    for envs in recordings:
        names, visits = envs.bank.names, visit(envs, make_policy("value", network, envs))
        predicted.append(network(visits.observations))
        true.append(token_targets(envs.tables, visits.rows))
    tokens = np.concatenate(true)
    errors, variances = np.square(np.concatenate(predicted) - tokens).mean(axis=0), tokens.var(axis=0)
    return {
        name: float(1 - error / variance)
        for name, error, variance in zip(names, errors, variances, strict=True)
        if variance
    }
