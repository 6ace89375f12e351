"""Recorded texts, each decoded once by a policy, with the best that could be made of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

from entmtp_env.replay.lockstep import LockstepReplay
from entmtp_env.replay.oracle import Oracle, solve
from entmtp_env.replay.staged_oracle import StagedOracle, solve_staged
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.base import Predictor, SchedulerPolicy, SchedulingEnv
from policies.lockstep import Script, replay
from policies.static import Static
from train.rl_tally import Figures, Tally
from train.staged_lessons import fixed


class AnyReplays(ABC):
    """Recorded texts side by side.

    Attributes:
        envs: As many environments as texts; what policies are built for.
        oracle: The best schedules.
        least_seconds: Their time by prompt id.
    """

    envs: LockstepReplay
    oracle: Oracle | StagedOracle

    def __init__(self, recordings: Sequence[str]) -> None:
        self.envs.tables.check_lengths()
        self._recordings = tuple(recordings)
        ids = (text.prompt_id for text in self.envs.prompts)
        self.least_seconds = dict(zip(ids, self.oracle.seconds.tolist(), strict=True))

    @property
    def env(self) -> SchedulingEnv:
        """What policies are built for, as their argument."""
        # Policies read the bank and the feature names, and a vector environment has both.
        return cast(SchedulingEnv, self.envs)

    @property
    @abstractmethod
    def best_static(self) -> SchedulerPolicy:
        """The policy that is fastest of those that always do the same."""

    @property
    def plan(self) -> Predictor:
        """The best schedules."""
        return Script([self.oracle.schedule(text) for text in range(len(self.envs.prompts))])

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


class Replays(AnyReplays):
    """Recorded texts to be decoded with the trees of a bank.

    Args:
        recordings: Recordings, pooled.
        environment: Further settings of :class:`~entmtp_env.replay.env.ReplayEnv`.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, or recordings, costs and bank do not fit together,
            or the KV cache may end a text.
    """

    envs: ReplayVectorEnv
    oracle: Oracle

    def __init__(self, recordings: Sequence[str], environment: Mapping[str, Any]) -> None:
        self.envs = ReplayVectorEnv(None, recording=tuple(recordings), **environment)
        self.oracle = solve(self.envs.tables)
        super().__init__(recordings)

    @property
    def best_static(self) -> Static:
        """The tree that is fastest alone."""
        return Static(self.env, self.envs.bank.names[self.oracle.best_static])


class StagedReplays(AnyReplays):
    """Recorded texts to be decoded in stages.

    Args:
        recordings: Recordings, pooled.
        environment: Further settings of :class:`~entmtp_env.replay.staged_env.StagedReplayEnv`.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, or recordings, drafts, costs and stages do not fit
            together, or the KV cache may end a text.
    """

    envs: StagedReplayVectorEnv
    oracle: StagedOracle

    def __init__(self, recordings: Sequence[str], environment: Mapping[str, Any]) -> None:
        self.envs = StagedReplayVectorEnv(None, recording=tuple(recordings), **environment)
        self.oracle = solve_staged(self.envs)
        super().__init__(recordings)

    @property
    def best_static(self) -> SchedulerPolicy:
        """The depth and number of nodes that are fastest throughout."""
        return fixed(self.envs, *self.oracle.best_static)
