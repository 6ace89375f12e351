"""Thousands of replayed episodes in lock-step: ``EntMTP/Replay-v0`` as a vector environment, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.lockstep import Flags, LockstepReplay, Rows, Steps
from entmtp_env.tracker import FeatureTracker
from entmtp_env.trees import TopologyBank


class ReplayVectorEnv(LockstepReplay):
    """``num_envs`` copies of :class:`~entmtp_env.replay.env.ReplayEnv` that step together.

    As in :class:`~entmtp_env.replay.lockstep.LockstepReplay`; observations are in Fortran order.

    Args:
        num_envs: N; ``None`` for one to each text.
        autoreset_mode: As there.
        **settings: Those of :class:`~entmtp_env.replay.env.ReplayEnv`.

    Raises:
        ValueError: When a setting is wrong, or there is not at least one environment.

    Example:
        >>> envs = gymnasium.make_vec(                                              # doctest: +SKIP
        ...     "EntMTP/Replay-v0", 4096, vectorization_mode="vector_entry_point"
        ... )
    """

    bank: TopologyBank

    def __init__(
        self,
        num_envs: int | None = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        single = ReplayEnv(**settings)
        super().__init__(single, num_envs, autoreset_mode)
        self.bank, self._signals = single.bank, single.signals
        self._tracker = FeatureTracker(self.feature_set, self.num_envs)
        self._trees = np.array(self.bank.names, dtype=object)

    def _begin_rows(self, rows: Rows) -> None:
        signals = self._signals.first_of_many(self._row[rows])
        if len(rows) == self.num_envs:
            self._tracker.reset(signals)
        else:
            self._tracker.restart(rows, signals)

    def _advance(self, actions: Rows, going: Flags) -> Steps:
        tables, costs, before = self.tables, self.tables.costs, self._row
        tokens = np.where(going, tables.emitted[actions, before], 0).astype(np.int64)
        self._row = before + tokens
        ended = going & (tables.stops[self._row] > 0)
        self._tracker.step(self._signals.after_many(before, actions, tokens - 1, self._row, ended))
        contexts = tables.contexts[before]
        seconds = (
            part[actions, contexts] for part in (costs.draft_seconds, costs.verify_seconds, costs.seconds)
        )
        return Steps(self._trees[actions], tokens, *seconds)

    def _observe(self) -> npt.NDArray[np.float32]:
        return self._tracker.observe()
