"""``EntMTP/StagedReplay-v0``: the staged environment's twin on a recording; no model is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from entmtp_env.decoding.stages import DEEPER, load_stages
from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.render_modes import check_render_mode
from entmtp_env.replay.costs import NOT_PRICED, load_costs, warn_of_others
from entmtp_env.replay.episodes import Observation, ReplayEpisodes
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.signals import SignalTable
from entmtp_env.replay.staged_costs import as_bank, staged_costs, staged_prices
from entmtp_env.replay.staged_drafts import StagedDrafts
from entmtp_env.replay.staged_tables import StagedTables
from entmtp_env.replay.tables import STOP_REASONS, ReplayTables
from entmtp_env.rewards import make_reward
from entmtp_env.staged_features import StagedFeatures, StagedTracker


class StagedReplayEnv(ReplayEpisodes):
    """Decide after every drafted depth over recorded texts, with the seconds of a cost table.

    Spaces, features, rewards, info and the meaning of the actions are those of
    :class:`entmtp_env.staged_env.StagedEnv`. The text in ``info`` is always the whole recorded one.

    Args:
        recording: As in :class:`~entmtp_env.replay.env.ReplayEnv`, as are those not listed here.
        drafts: File of its staged drafts, or several.
        costs: Costs of decode steps; measured ones are interpolated by size and depth.
        stages: ``"default"``, or a JSON file; of the shape of the drafts.
        max_new_tokens: Token cap of a text; that of the recording by default.
        reward: Reward name or spec.
        features: ``"all"``, or names of :data:`~entmtp_env.staged_features.GROUPS`.
        capacity: KV rows; prompt, text and the largest budget must fit.
        render_mode: ``None``.

    Raises:
        ValueError: When an argument is not one of the above, or they do not fit together.
        FileNotFoundError: When a file is not to be had.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    _tracker: StagedTracker

    def __init__(
        self,
        recording: str | Sequence[str],
        drafts: str | Sequence[str],
        costs: str = "auto",
        stages: str = "default",
        max_new_tokens: int | None = None,
        reward: str = "tokens_per_second",
        features: str | list[str] | tuple[str, ...] = "all",
        capacity: int = 2048,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = check_render_mode(type(self), render_mode)
        self.stages = self.bank = load_stages(stages)
        texts, measured = load_recording(recording), load_costs(costs)
        warn_of_others(measured, texts.manifest)
        prices = staged_prices(measured)
        self.staged = StagedTables(texts, StagedDrafts.load(drafts).of(texts), self.stages)
        self.tables = ReplayTables.build(texts, prices, as_bank(self.stages), max_new_tokens, capacity)
        self.costs = staged_costs(prices, self.stages, np.arange(capacity + 1))
        self.prompts, self.max_new_tokens, self.capacity = texts.texts, self.tables.max_new_tokens, capacity
        self.feature_set = StagedFeatures(self.stages, features)
        self.feature_names = self.feature_set.names
        self.observation_space = gymnasium.spaces.Box(
            self.feature_set.low, self.feature_set.high, dtype=np.float32
        )
        self.action_space = cast("gymnasium.Space[int]", gymnasium.spaces.Discrete(len(self.stages)))
        self.reward = make_reward(reward)
        self._tracker = StagedTracker(self.feature_set, self.stages)
        self.signals = SignalTable(self.tables, "none")
        self._queue = PromptQueue([text.prompt_id for text in self.prompts], str(recording))
        self._row, self._depth, self._running, self._last_step = 0, 0, False, (0, 0.0)

    @property
    def manifest(self) -> dict[str, Any]:
        """What a result made with this environment depends on."""
        return self.tables.manifest | {
            "bank": self.stages.name,
            "bank_fingerprint": self.stages.fingerprint,
            "features_fingerprint": self.feature_set.fingerprint,
            "probe": self.feature_set.probe,
        }

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal now, ``(actions,)``: the convention of sb3-contrib's MaskablePPO."""
        return self.stages.masks[self._depth].copy()

    def _begin(self) -> dict[str, Any]:
        self._depth = 0
        return self._info("", 0, 0.0, 0.0, "")

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Replay one decision.

        Raises:
            ResetNeeded: When the text has ended.
            ValueError: When there is no such action.
        """
        if not self._running:
            raise ResetNeeded("the text has ended or none was begun: call reset() before step()")
        action = self.stages.settle(int(action), self._depth)
        tokens, stop, verify = 0, 0, 0.0
        length = self._text.prompt_tokens + self._total_tokens
        if action == DEEPER:
            seconds = self.costs.draft_seconds.item(self._depth, length)
            staged, row, depth = self.staged, self._row, self._depth
            self._depth += 1
            self._tracker.deepen(self._depth, staged.of_depths[row, depth], staged.of_budgets[row, depth])
        else:
            seconds = verify = self.costs.verify_seconds.item(action - 1, length)
            tokens, stop = self._verify(action - 1)
        # A formula may call drafting free; in no time, nothing is gained or lost.
        reward = self.reward(tokens, seconds, self._total_tokens, self._total_seconds) if seconds else 0.0
        self._total_tokens += tokens
        self._total_seconds += seconds
        tree = "" if action == DEEPER else self.stages.names[action]
        info = self._info(tree, tokens, seconds, verify, STOP_REASONS[stop])
        return self._tracker.observe(), float(reward), stop == 1, stop > 1, info

    def _verify(self, budget: int) -> tuple[int, int]:
        """Commit what the budget of that place accepts: the tokens, and why the text ends."""
        accepted = self.staged.accepts.item(self._row, self._depth, budget)
        tokens = min(accepted + 1, int(self.tables.ends[self._index]) - self._row)
        last, self._row, self._depth = self._now, self._row + tokens, 0
        stop = self.tables.stops.item(self._row)
        self._now, self._running = self.signals.at(self._row), not stop
        self._tracker.step(self.signals.after(last, budget, tokens - 1, self._now, stop > 0))
        return tokens, stop

    def _info(self, tree: str, tokens: int, seconds: float, verify: float, reason: str) -> dict[str, Any]:
        self._last_step = tokens, seconds
        return {
            "prompt_id": self._text.prompt_id,
            "prefill_seconds": self._prefill_seconds,
            "tree": tree,
            "accept_length": max(tokens - 1, 0),
            "tokens": tokens,
            "seconds": seconds,
            "draft_seconds": seconds - verify,
            "verify_seconds": verify,
            **NOT_PRICED,
            "total_tokens": self._total_tokens,
            "total_seconds": self._total_seconds,
            "finish_reason": reason,
            "text": self._text.text if reason else "",
            "action_mask": self.stages.masks[self._depth].astype(np.int8),
        }
