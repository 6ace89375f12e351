"""Thousands of replayed episodes in lock-step: ``EntMTP/Replay-v0`` as a vector environment, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from entmtp_env.prompt_queue import draw_order
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.tables import STOP_REASONS
from entmtp_env.tracker import FeatureTracker

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

_REASONS = np.array(STOP_REASONS, dtype=object)


class ReplayVectorEnv(VectorEnv[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[Any]]):
    """``num_envs`` copies of :class:`~entmtp_env.replay.env.ReplayEnv` that step together.

    Copy i, seeded with s, goes through the same episodes as a ``ReplayEnv`` seeded with s + i. Observations
    are float32 ``(num_envs, F)`` in Fortran order, rewards float64, and every key of ``info`` an array.

    Args:
        num_envs: N.
        autoreset_mode: When an ended episode makes room for the next: at the next step, whose action is
            then ignored (``NEXT_STEP``); at once (``SAME_STEP``, ``info`` has ``final_obs`` and
            ``final_info``); or when ``reset`` is called with ``options={"reset_mask": ...}`` (``DISABLED``).
        **settings: Those of :class:`~entmtp_env.replay.env.ReplayEnv`.

    Raises:
        ValueError: When a setting is wrong, or there is not at least one environment.

    Example:
        >>> envs = gymnasium.make_vec(                                              # doctest: +SKIP
        ...     "EntMTP/Replay-v0", 4096, vectorization_mode="vector_entry_point"
        ... )
    """

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **settings: Any,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        single = ReplayEnv(**settings)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**single.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs, self.render_mode = num_envs, None
        self.tables, self.bank, self.prompts = single.tables, single.bank, single.prompts
        self.feature_set, self.feature_names = single.feature_set, single.feature_names
        self.max_new_tokens, self.capacity = single.max_new_tokens, single.capacity
        self.manifest = single.manifest
        self.single_observation_space, self.single_action_space = (
            single.observation_space,
            single.action_space,
        )
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._signals, self._reward = single.signals, single.reward
        self._tracker = FeatureTracker(self.feature_set, num_envs)
        self._index = {text.prompt_id: i for i, text in enumerate(self.prompts)}
        self._ids, self._replies = (
            np.array([getattr(text, name) for text in self.prompts], dtype=object)
            for name in ("prompt_id", "text")
        )
        self._trees = np.array(self.bank.names, dtype=object)
        self._prompt_tokens = np.array([text.prompt_tokens for text in self.prompts])
        self._generators: list[np.random.Generator] = []
        # Text by environment and turn; a turn past the end draws a new order.
        self._order = np.zeros((num_envs, len(self.prompts)), dtype=np.int32)
        self._turn = np.full(num_envs, len(self.prompts))
        self._text, self._row = (np.zeros(num_envs, dtype=np.int64) for _ in range(2))
        self._total_tokens = np.zeros(num_envs, dtype=np.int64)
        self._total_seconds = np.zeros(num_envs)
        self._last_tokens, self._last_seconds = self._total_tokens.copy(), self._total_seconds.copy()
        self._ended = np.ones(num_envs, dtype=np.bool_)

    @property
    def place(self) -> tuple[npt.NDArray[Any], Rows]:
        """Prompt ids, and the tokens of each text so far, both ``(num_envs,)``."""
        return self._ids[self._text], self.tables.positions[self._row]

    @property
    def last_step(self) -> tuple[Rows, Floats]:
        """Tokens and seconds of each text's last step, both 0 before its first, ``(num_envs,)`` each."""
        return self._last_tokens.copy(), self._last_seconds.copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin texts.

        Args:
            seed: One for each environment, or the first, from which they count up.
            options: ``{"prompt_id": …}``, an id or a sequence of one per environment that is reset;
                ``{"reset_mask": …}``, bool ``(num_envs,)``, which these are, for ``AutoresetMode.DISABLED``.

        Raises:
            ResetNeeded: When the first reset leaves some out.
            ValueError: When an option or a prompt id is unknown, or a shape is wrong; nothing has changed.
        """
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        wanted = options.pop("prompt_id", None)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; expected 'prompt_id' or 'reset_mask'")
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ValueError(f"reset_mask must be bool, ({self.num_envs},), and somewhere true")
        if not self._generators and not mask.all():
            raise ResetNeeded("no text was begun yet: the first reset() must be of all environments")
        rows = np.flatnonzero(mask)
        picked = None if wanted is None else self._pick(wanted, len(rows))
        self._seed(seed, mask)
        texts = self._next_texts(rows)
        self._begin(rows, texts if picked is None else picked)
        none = np.zeros(self.num_envs, dtype=np.int64)
        info = self._step_info(none, none, np.zeros(self.num_envs), self._row, none.astype(np.uint8))
        everyone = np.arange(self.num_envs)
        _overwrite(info, everyone, self._reset_info(everyone))
        return self._tracker.observe(), info

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], Floats, Flags, Flags, dict[str, Any]]:
        """Replay one step in every environment.

        Raises:
            ResetNeeded: When no text was begun, or one has ended and ``AutoresetMode.DISABLED`` leaves it so.
            ValueError: When the actions are not one existing tree per environment.
        """
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be integers, ({self.num_envs},); got {actions.dtype} {actions.shape}"
            )
        if actions.min() < 0 or actions.max() >= len(self.bank):
            raise ValueError(f"an action is outside 0..{len(self.bank) - 1}, the trees of the bank")
        begins = np.flatnonzero(self._ended)
        if len(begins) and (not self._generators or self.autoreset_mode == AutoresetMode.DISABLED):
            raise ResetNeeded("a text has ended or none was begun: call reset() before step()")
        tables, before = self.tables, self._row
        tokens = tables.emitted[actions, before].astype(np.int64)
        seconds = tables.costs.seconds[actions, tables.contexts[before]]
        tokens[begins] = 0
        self._row = before + tokens
        stops = tables.stops[self._row]
        stops[begins] = 0
        self._tracker.step(self._signals.after_many(before, actions, tokens - 1, self._row, stops > 0))
        rewards = self._reward(tokens, seconds, self._total_tokens, self._total_seconds)
        rewards[begins] = 0
        self._total_tokens += tokens
        self._total_seconds += seconds
        self._last_tokens[:], self._last_seconds[:] = tokens, seconds
        self._ended = stops > 0
        info = self._step_info(actions, tokens, seconds, before, stops)
        if len(begins):
            self._begin(begins, self._next_texts(begins))
            _overwrite(info, begins, self._reset_info(begins))
        if self.autoreset_mode == AutoresetMode.SAME_STEP and self._ended.any():
            info = self._restart_at_once(info)
        return self._tracker.observe(), rewards, stops == 1, stops > 1, info

    def _restart_at_once(self, info: dict[str, Any]) -> dict[str, Any]:
        """Begin the next texts where one has ended; ``info`` keeps the last observations and infos."""
        rows, ended, observations = np.flatnonzero(self._ended), self._ended.copy(), self._tracker.observe()
        last = np.full(self.num_envs, None, dtype=object)
        for row in rows:
            last[row] = observations[row].copy()
        now = {key: values.copy() for key, values in info.items()}
        self._begin(rows, self._next_texts(rows))
        _overwrite(now, rows, self._reset_info(rows))
        final = info | {f"_{key}": ended for key in info}
        return now | {"final_obs": last, "_final_obs": ended, "final_info": final, "_final_info": ended}

    def _begin(self, rows: Rows, texts: Rows) -> None:
        """Begin texts in some environments, or in all of them."""
        self._text[rows], self._row[rows] = texts, self.tables.starts[texts]
        self._total_tokens[rows], self._total_seconds[rows], self._ended[rows] = 0, 0, False
        self._last_tokens[rows], self._last_seconds[rows] = 0, 0
        signals = self._signals.first_of_many(self._row[rows])
        if len(rows) == self.num_envs:
            self._tracker.reset(signals)
        else:
            self._tracker.restart(rows, signals)

    def _seed(self, seed: int | Sequence[int | None] | None, mask: Flags) -> None:
        if seed is None or isinstance(seed, (int, np.integer)):
            seeds = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        if not self._generators:
            self._generators = [np.random.default_rng(one) for one in seeds]
            return
        for row, one in enumerate(seeds):
            if one is not None and mask[row]:
                self._generators[row] = np.random.default_rng(one)
                self._turn[row] = len(self.prompts)

    def _pick(self, wanted: str | Sequence[str], count: int) -> Rows:
        """Numbers of the texts that were asked for."""
        ids = [wanted] * count if isinstance(wanted, str) else list(wanted)
        if len(ids) != count:
            raise ValueError(f"{len(ids)} prompt ids for {count} environments")
        for prompt_id in ids:
            if prompt_id not in self._index:
                raise ValueError(f"no prompt {prompt_id!r} in the recording; ids look like {self._ids[0]!r}")
        return np.array([self._index[prompt_id] for prompt_id in ids])

    def _next_texts(self, rows: Rows) -> Rows:
        """Numbers of the next texts of some environments."""
        count = len(self.prompts)
        for row in rows[self._turn[rows] >= count]:
            # A queue is popped from its end.
            self._order[row] = draw_order(self._generators[row], count)[0][::-1]
            self._turn[row] = 0
        texts = self._order[rows, self._turn[rows]].astype(np.int64)
        self._turn[rows] += 1
        return texts

    def _step_info(
        self, actions: Rows, tokens: Rows, seconds: Floats, before: Rows, stops: npt.NDArray[np.uint8]
    ) -> dict[str, Any]:
        costs, contexts = self.tables.costs, self.tables.contexts[before]
        return {
            "prompt_id": self._ids[self._text],
            "prefill_seconds": costs.prefill_seconds[self._prompt_tokens[self._text]],
            "tree": self._trees[actions],
            "accept_length": tokens - 1,
            "tokens": tokens,
            "seconds": seconds,
            "draft_seconds": costs.draft_seconds[actions, contexts],
            "verify_seconds": costs.verify_seconds[actions, contexts],
            "total_tokens": self._total_tokens.copy(),
            "total_seconds": self._total_seconds.copy(),
            "finish_reason": _REASONS[stops],
            "text": np.where(stops > 0, self._replies[self._text], ""),
        }

    def _reset_info(self, rows: Rows) -> dict[str, Any]:
        """The info of environments that have made no step, a value or an array ``(len(rows),)`` each."""
        texts = self._text[rows]
        prefill = self.tables.costs.prefill_seconds[self._prompt_tokens[texts]]
        nothing = ("accept_length", "tokens", "seconds", "draft_seconds", "verify_seconds")
        return {
            "prompt_id": self._ids[texts],
            "prefill_seconds": prefill,
            **dict.fromkeys(("tree", "finish_reason", "text"), ""),
            **dict.fromkeys(nothing, 0),
            "total_tokens": self._total_tokens[rows],
            "total_seconds": self._total_seconds[rows],
        }


def _overwrite(info: dict[str, Any], rows: Rows, values: dict[str, Any]) -> None:
    for key, value in values.items():
        info[key][rows] = value
