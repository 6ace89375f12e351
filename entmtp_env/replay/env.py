"""``EntMTP/Replay-v0``: the live environment's twin on a recording; deterministic, and no model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from entmtp_env.features import FeatureSet, Probe
from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.render_modes import check_render_mode
from entmtp_env.replay.costs import NOT_PRICED, load_costs
from entmtp_env.replay.episodes import Observation, ReplayEpisodes
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.signals import SignalTable
from entmtp_env.replay.tables import STOP_REASONS, ReplayTables
from entmtp_env.rewards import make_reward
from entmtp_env.tracker import FeatureTracker
from entmtp_env.trees import load_bank


class ReplayEnv(ReplayEpisodes):
    """Schedule draft trees over recorded texts, with the seconds of a cost table.

    Spaces, features, rewards and info are those of :class:`entmtp_env.live.LiveEnv`; a step accepts what the
    live one accepts, and takes the seconds that the table has for its tree and context length. The text in
    ``info`` is always the whole recorded one, even if a lower cap or capacity ends the episode before.

    Args:
        recording: A shipped recording or an ``.npz`` file, ``name``, ``name:calibration`` or
            ``name:evaluation``; a list of them is one set.
        costs: ``"auto"``, a shipped cost table, a JSON file, or ``analytic:base=…,node=…,depth=…``.
        bank: ``"default"``, a shipped one such as ``"smollm2-pooled"``, or a JSON file of a topology bank.
        max_new_tokens: Token cap of a text; that of the recording by default.
        reward: Reward name or spec.
        features: ``"all"``, or names of feature groups, comma-separated or as a sequence.
        probe: What is drafted before the decision: ``"none"``, ``"first"`` (the first depth, which every
            tree but the empty one drafts anyway), ``"chain"`` or ``"union"``; the costs must
            have been measured with it.
        capacity: KV rows; prompt, text and the largest tree must fit.
        render_mode: ``None``.

    Raises:
        ValueError: When an argument is not one of the above, or recording, costs and bank do not fit.
        FileNotFoundError: When a file is not to be had.

    Example:
        >>> env = gymnasium.make("EntMTP/Replay-v0", recording="math")      # doctest: +SKIP
        >>> observation, info = env.reset(seed=0)                           # doctest: +SKIP
        >>> observation, reward, terminated, truncated, info = env.step(3)  # doctest: +SKIP
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        recording: str | Sequence[str] = "chat",
        costs: str = "auto",
        bank: str = "default",
        max_new_tokens: int | None = None,
        reward: str = "tokens_per_second",
        features: str | list[str] | tuple[str, ...] = "all",
        probe: Probe = "none",
        capacity: int = 2048,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = check_render_mode(type(self), render_mode)
        self.tables = ReplayTables.build(
            load_recording(recording), load_costs(costs), load_bank(bank), max_new_tokens, capacity, probe
        )
        self.bank, self.prompts = self.tables.bank, self.tables.recording.texts
        self.max_new_tokens, self.capacity = self.tables.max_new_tokens, capacity
        self.feature_set = FeatureSet(self.bank.depth, [len(tree) for tree in self.bank], features, probe)
        self.feature_names = self.feature_set.names
        self.observation_space = gymnasium.spaces.Box(
            self.feature_set.low, self.feature_set.high, dtype=np.float32
        )
        self.action_space = cast("gymnasium.Space[int]", gymnasium.spaces.Discrete(len(self.bank)))
        self.reward = make_reward(reward)
        self._tracker = FeatureTracker(self.feature_set)
        self.signals = SignalTable(self.tables, probe)
        self._queue = PromptQueue([text.prompt_id for text in self.prompts], str(recording))
        self._trees = self.bank.names
        self._row, self._running, self._last_step = 0, False, (0, 0.0)

    @property
    def manifest(self) -> dict[str, Any]:
        """What a result made with this environment depends on."""
        features = {"features_fingerprint": self.feature_set.fingerprint, "probe": self.feature_set.probe}
        return self.tables.manifest | features

    def _begin(self) -> dict[str, Any]:
        return self._info("", 0, 0, 0.0, 0.0, 0.0, "")

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Replay one step with the tree of index ``action``.

        Raises:
            ResetNeeded: When the text has ended.
            ValueError: When there is no such tree.
        """
        if not self._running:
            raise ResetNeeded("the text has ended or none was begun: call reset() before step()")
        action = int(action)
        if not 0 <= action < len(self._trees):
            raise ValueError(f"action {action} is outside 0..{len(self.bank) - 1}, the trees of the bank")
        tables, signals, tracker, last = self.tables, self.signals, self._tracker, self._now
        tokens: int = tables.emitted.item(action, self._row)
        seconds, draft, verify = tables.prices[action][self._text.prompt_tokens + self._total_tokens]
        row = self._row = self._row + tokens
        stop: int = tables.stops.item(row)
        self._running = not stop
        now = self._now = signals.at(row)
        tracker.step(signals.after(last, action, tokens - 1, now, stop > 0))
        reward = self.reward(tokens, seconds, self._total_tokens, self._total_seconds)
        self._total_tokens += tokens
        self._total_seconds += seconds
        info = self._info(self._trees[action], tokens - 1, tokens, seconds, draft, verify, STOP_REASONS[stop])
        return tracker.observe(), reward, stop == 1, stop > 1, info

    def _info(
        self,
        tree: str,
        accept_length: int,
        tokens: int,
        seconds: float,
        draft: float,
        verify: float,
        reason: str,
    ) -> dict[str, Any]:
        self._last_step = tokens, seconds
        return {
            "prompt_id": self._text.prompt_id,
            "prefill_seconds": self._prefill_seconds,
            "tree": tree,
            "accept_length": accept_length,
            "tokens": tokens,
            "seconds": seconds,
            "draft_seconds": draft,
            "verify_seconds": verify,
            **NOT_PRICED,
            "total_tokens": self._total_tokens,
            "total_seconds": self._total_seconds,
            "finish_reason": reason,
            "text": self._text.text if reason else "",
        }
