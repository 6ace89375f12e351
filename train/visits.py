"""Where schedulers get to in recorded texts, and what they see there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.lockstep import LockstepReplay
from policies.base import Memory, Predictor


@dataclass(frozen=True, eq=False)
class Visits:
    """Decisions, M of them.

    Attributes:
        observations: What was seen, float32 ``(M, F)``.
        rows: Row of the recording, ``(M,)``.
        texts: Number of the text, ``(M,)``.
    """

    observations: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64]
    texts: npt.NDArray[np.int64]

    @classmethod
    def join(cls, parts: Sequence[Visits]) -> Visits:
        """Those of several runs."""
        columns = zip(*((part.observations, part.rows, part.texts) for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def of(self, texts: npt.NDArray[np.int64]) -> Visits:
        """Those in some of the texts."""
        kept = np.isin(self.texts, texts)
        return Visits(self.observations[kept], self.rows[kept], self.texts[kept])


def visit(
    envs: LockstepReplay, policy: Predictor, explore: float = 0.0, rng: np.random.Generator | None = None
) -> Visits:
    """Run every text once.

    Args:
        envs: An environment for each text, in an autoreset mode that needs no calls of ``reset``.
        policy: What schedules; told where texts begin as in :func:`policies.lockstep.replay`.
        explore: Share of the steps with a random tree instead of the policy's.
        rng: Draws them.
    """
    rng = rng or np.random.default_rng(0)
    count = envs.num_envs
    observations, _ = envs.reset(seed=0, options={"prompt_id": [text.prompt_id for text in envs.prompts]})
    running, starts = np.ones(count, dtype=np.bool_), envs.episode_start
    others = np.zeros_like(starts)
    state: Memory | None = None
    parts = []
    while running.any():
        texts = np.flatnonzero(running)
        rows = envs.tables.starts[texts] + envs.place[1][texts]
        parts.append(Visits(observations[texts], rows, texts))
        actions, state = policy.predict(observations, state, starts)
        explores = rng.random(count) < explore
        actions = np.where(explores, rng.integers(len(envs.bank), size=count), actions)
        observations, _, terminated, truncated, _ = envs.step(actions)
        starts = others = others | envs.episode_start
        running &= ~(terminated | truncated)
    return Visits.join(parts)
