"""A network taught all decisions of a staged scheduler: recordings tell what each of them would have cost."""

from __future__ import annotations

from typing import cast

import numpy as np
from rich.progress import Progress

from entmtp_env.replay.staged_oracle import solve_staged
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from policies.base import Predictor, SchedulingEnv
from policies.lockstep import replay
from policies.network import Network
from policies.staged import StagedThreshold
from policies.staged_learned import StagedLearned
from train.student import Examples, Student, expected_cost_of_stages
from train.visits import Visits, visit

_EXPLORE = 0.2
"""Share of random decisions while visits are collected."""
_VALIDATION = 5
"""One of so many training texts decides when to stop."""
_TRUE = 0.5
"""Weight of the tokens that were true; the rest is that of the path values, which err but are no luck."""


class StagedLessons:
    """Training texts, and the visits that the training begins with.

    Args:
        envs: An environment for each training text.
        seed: Seed of everything random.
        bar: Shows the progress.

    Attributes:
        envs: The environments.
        oracle: The best decisions of the texts.

    Raises:
        ValueError: When there are fewer than two texts.
    """

    def __init__(self, envs: StagedReplayVectorEnv, seed: int, bar: Progress) -> None:
        if envs.num_envs < 2:
            raise ValueError("one text to train on leaves none to decide when to stop; name more recordings")
        self.envs, self.oracle = envs, solve_staged(envs)
        self._seed, self._bar = seed, bar
        self._rng = np.random.default_rng(seed)
        order = self._rng.permutation(envs.num_envs)
        count = max(1, envs.num_envs // _VALIDATION)
        self._validation, self._training = order[:count], order[count:]
        beginners = [StagedThreshold(cast(SchedulingEnv, envs)), fixed(envs, *self.oracle.best_static)]
        self._first = [self._visit(policy) for policy in bar.track(beginners, description="first visits")]

    def teach(self, rounds: int, epochs: int) -> Network:
        """Train a network; in every round after the first, its own decisions lead to further visits.

        Seconds are weighed against tokens by the throughput of what was learnt so far (Dinkelbach, 1967), of
        the best fixed depth and budget in the first round.

        Args:
            rounds: Rounds after the first.
            epochs: Passes over the visits in each, at most.
        """
        visits, tables = list(self._first), self.envs.tables
        tokens = float((tables.ends - tables.starts).sum())
        rate = tokens / float(self.oracle.static_seconds(*self.oracle.best_static).sum())
        student = Student(examples(self.envs, rate, Visits.join(visits)), expected_cost_of_stages, self._seed)
        task = self._bar.add_task("training", total=(rounds + 1) * epochs)
        for step in range(rounds + 1):
            if step:
                policy = make_staged(student.network(), self.envs)
                visits.append(self._visit(policy))
                rate = max(rate, tokens / _seconds(self.envs, policy))
            joined = Visits.join(visits)
            training = examples(self.envs, rate, joined.of(self._training))
            validation = examples(self.envs, rate, joined.of(self._validation), true=1.0)
            student.learn(training, validation, epochs, lambda: self._bar.advance(task))
        return student.network()

    def _visit(self, policy: Predictor) -> Visits:
        return visit(self.envs, policy, _EXPLORE, self._rng)


def examples(envs: StagedReplayVectorEnv, rate: float, visits: Visits, true: float = _TRUE) -> Examples:
    """What all decisions of the visited steps see, and cost.

    Args:
        envs: Where the visits were made.
        rate: Tokens that a second is worth.
        visits: Decisions; those before anything is drafted stand for their steps.
        true: Weight of the tokens that a verification emits; the rest is that of what the path values of the
            drafts promise.

    Returns:
        Observations ``(M, D + 1, F)`` and seconds ``(M, D + 1, actions)``, NaN where an action is illegal: of
        drafting a depth; of verifying, less the worth of its tokens, over the least of the step.
    """
    tables, stages, features = envs.tables, envs.stages, envs.feature_set
    begins = visits.observations[:, features.names.index("stage")] == 0
    rows, base = visits.rows[begins], visits.observations[begins, : len(features.base.names)]
    drafts = np.minimum(envs.staged.observed[rows], features.high[base.shape[1] :])
    observations = np.concatenate((np.repeat(base[:, None], drafts.shape[1], axis=1), drafts), axis=2)
    room = (tables.ends[visits.texts[begins]] - rows)[:, None, None]
    tokens = true * np.minimum(envs.staged.accepts[rows] + 1, room)
    tokens += 1 - true
    tokens[:, 1:, 1:] += (1 - true) * envs.staged.of_budgets[rows]
    verifying = envs.costs.verify_seconds[:, tables.contexts[rows]].T[:, None]
    costs = np.where(stages.masks[:, 1:], verifying - tokens / rate, np.nan)
    deeper = np.full((*costs.shape[:2], 1), np.nan)
    deeper[:, :-1, 0] = envs.costs.draft_seconds[:, tables.contexts[rows]].T
    least = np.nanmin(costs, axis=(1, 2), keepdims=True)
    return observations, np.concatenate((deeper, costs - least), axis=2)


def fixed(envs: StagedReplayVectorEnv, depth: int, budget: int) -> StagedThreshold:
    """The policy that drafts so many depths and verifies the budget of that number, throughout."""
    thresholds = [0.0] * depth + [2.0] * (envs.stages.depth - depth)
    return StagedThreshold(cast(SchedulingEnv, envs), thresholds, envs.stages.budgets[budget])


def make_staged(network: Network, envs: StagedReplayVectorEnv) -> StagedLearned:
    """The policy of a network."""
    # Policies read the stages and the feature names, and a vector environment has both.
    return StagedLearned(cast(SchedulingEnv, envs), network)


def _seconds(envs: StagedReplayVectorEnv, policy: Predictor) -> float:
    ids = [text.prompt_id for text in envs.prompts]
    return sum(episode.seconds for episode in replay(envs, policy, ids).episodes)
