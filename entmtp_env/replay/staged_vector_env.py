"""``EntMTP/StagedReplay-v0`` as a vector environment: thousands of staged episodes in lock-step, in NumPy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from entmtp_env.decoding.stages import DEEPER, Stages
from entmtp_env.replay.lockstep import Flags, LockstepReplay, Rows, Steps
from entmtp_env.replay.staged_env import StagedReplayEnv
from entmtp_env.tracker import FeatureTracker, Signals


class StagedReplayVectorEnv(LockstepReplay):
    """``num_envs`` copies of :class:`~entmtp_env.replay.staged_env.StagedReplayEnv` that decide together.

    As in :class:`~entmtp_env.replay.lockstep.LockstepReplay`. ``info["action_mask"]`` is int8
    ``(num_envs, actions)``.

    Args:
        num_envs: N; ``None`` for one to each text.
        autoreset_mode: As there.
        **settings: Those of :class:`~entmtp_env.replay.staged_env.StagedReplayEnv`.

    Raises:
        ValueError: When a setting is wrong, or there is not at least one environment.
        FileNotFoundError: When a file is not to be had.
    """

    bank: Stages

    def __init__(
        self,
        num_envs: int | None = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        single = StagedReplayEnv(**settings)
        super().__init__(single, num_envs, autoreset_mode)
        self.stages = self.bank = single.stages
        self.staged, self.costs, self._signals = single.staged, single.costs, single.signals
        self._tracker = _Trackers(self.feature_set.base, self.num_envs)
        self._drafts = np.minimum(self.staged.observed, self.feature_set.high[len(self._tracker.names) :])
        self._names = np.array(["", *self.stages.names[1:]], dtype=object)
        self._masks = self.stages.masks
        # Illegal actions are taken as the last legal one.
        self._last = self._masks.shape[1] - 1 - self._masks[:, ::-1].argmax(axis=1)
        self._depth = np.zeros(self.num_envs, dtype=np.int64)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, ``(num_envs, actions)``."""
        return self._masks[self._depth]

    def _begin_rows(self, rows: Rows) -> None:
        self._depth[rows] = 0
        signals = self._signals.first_of_many(self._row[rows])
        if len(rows) == self.num_envs:
            self._tracker.reset(signals)
        else:
            self._tracker.restart(rows, signals)

    def _advance(self, actions: Rows, going: Flags) -> Steps:
        tables, before, depth = self.tables, self._row, self._depth
        actions = np.where(self._masks[depth, actions], actions, self._last[depth])
        deeper = going & (actions == DEEPER)
        rows = np.flatnonzero(going & ~deeper)
        at, budgets = before[rows], actions[rows] - 1
        tokens, verify_seconds = np.zeros_like(before), np.zeros(len(before))
        accepted = self.staged.accepts[at, depth[rows], budgets].astype(np.int64)
        tokens[rows] = np.minimum(accepted + 1, tables.ends[self._text[rows]] - at)
        verify_seconds[rows] = self.costs.verify_seconds[budgets, tables.contexts[at]]
        draft_seconds = np.zeros(len(before))
        draft_seconds[deeper] = self.costs.draft_seconds[depth[deeper], tables.contexts[before[deeper]]]
        self._row = before + tokens
        self._depth = np.where(deeper, depth + 1, 0)
        behind = self._row[rows]
        self._tracker.step_some(
            rows,
            self._signals.after_many(at, budgets, tokens[rows] - 1, behind, tables.stops[behind] > 0),
        )
        return Steps(
            self._names[actions], tokens, draft_seconds, verify_seconds, draft_seconds + verify_seconds
        )

    def _observe(self) -> npt.NDArray[np.float32]:
        return np.concatenate((self._tracker.observe(), self._drafts[self._row, self._depth]), axis=1)

    def _step_info(self, rows: Rows, step: Steps, stops: npt.NDArray[Any]) -> dict[str, Any]:
        masks = self._masks[self._depth[rows]].astype(np.int8)
        return super()._step_info(rows, step, stops) | {"action_mask": masks}


class _Trackers(FeatureTracker):
    """The running features of many environments of which some only decode in a step; the others draft."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.features.names

    def step_some(self, rows: Rows, signals: Signals) -> None:
        """Advance some environments by one decode step.

        Args:
            rows: Which.
            signals: Their signals at the decision after the step, each ``(len(rows),)``.
        """
        for group in self._groups:
            part = copy.copy(group)
            for name in group.memory:
                values = copy.copy(getattr(group, name))
                for index, value in enumerate(values):
                    values[index] = value[rows]
                setattr(part, name, values)
            part.step(signals)
            group.replace(rows, part)
