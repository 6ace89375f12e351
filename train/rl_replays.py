"""Recorded texts, each decoded once by a policy, with the best that could be made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.base import Predictor, SchedulingEnv
from policies.lockstep import replay
from policies.static import Static
from train.rl_tally import Figures, Tally, least_seconds


class Replays:
    """Recorded texts side by side.

    Args:
        recordings: Recordings, pooled.
        environment: Further settings of :class:`~entmtp_env.replay.env.ReplayEnv`.

    Attributes:
        envs: As many environments as texts; what policies are built for.
        oracle: The best schedules.
        least_seconds: Their time by prompt id.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, or recordings, costs and bank do not fit together.
    """

    def __init__(self, recordings: Sequence[str], environment: Mapping[str, Any]) -> None:
        self._recordings = tuple(recordings)
        count = len(load_recording(self._recordings).texts)
        self.envs = ReplayVectorEnv(count, recording=self._recordings, **environment)
        self.oracle = solve(self.envs.tables)
        self.least_seconds = least_seconds(self.oracle)

    @property
    def env(self) -> SchedulingEnv:
        """What policies are built for, as their argument."""
        # Policies read the bank and the feature names, and a vector environment has both.
        return cast(SchedulingEnv, self.envs)

    @property
    def best_static(self) -> Static:
        """The tree that is fastest alone."""
        return Static(self.env, self.envs.bank.names[self.oracle.best_static])

    @property
    def record(self) -> dict[str, Any]:
        """Which texts these are, as JSON values."""
        recording = self.envs.tables.recording
        return {
            "recordings": self._recordings,
            "texts": len(recording.texts),
            "fingerprint": recording.fingerprint,
        }

    def run(self, policy: Predictor) -> Figures:
        """All figures of a policy, deterministic and without its own time."""
        tally = Tally(len(self.envs.bank), self.least_seconds)
        tally.add_episodes(replay(self.envs, policy, [text.prompt_id for text in self.envs.prompts]).episodes)
        return tally.figures()
