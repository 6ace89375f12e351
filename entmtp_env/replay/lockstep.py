"""Thousands of replayed episodes in lock-step, in NumPy: what the vector environments of replays share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from entmtp_env.decoding.stages import Stages
from entmtp_env.prompt_queue import draw_order
from entmtp_env.replay.costs import NOT_PRICED
from entmtp_env.replay.tables import STOP_REASONS
from entmtp_env.trees import TopologyBank

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

_REASONS = np.array(STOP_REASONS, dtype=object)


@dataclass(frozen=True, slots=True)
class Steps:
    """What a step was in some environments, each ``(n,)``.

    Attributes:
        trees: Name of the tree that was verified, ``""`` where none was.
        tokens: Tokens emitted.
        draft_seconds: Time spent drafting.
        verify_seconds: The rest of the step's time.
        seconds: All of it.
    """

    trees: npt.NDArray[Any]
    tokens: Rows
    draft_seconds: Floats
    verify_seconds: Floats
    seconds: Floats


class LockstepReplay(VectorEnv[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[Any]], ABC):
    """``num_envs`` copies of a replay environment that step together.

    Copy i, seeded with s, goes through the same episodes as a single one seeded with s + i. Observations are
    float32 ``(num_envs, F)``, rewards float64, and every key of ``info`` an array.

    Args:
        single: The environment.
        num_envs: N; ``None`` for one to each text.
        autoreset_mode: When an ended episode makes room for the next: at the next step, whose action is
            then ignored (``NEXT_STEP``); at once (``SAME_STEP``, ``info`` has ``final_obs`` and
            ``final_info``); or when ``reset`` is called with ``options={"reset_mask": ...}`` (``DISABLED``).

    Attributes:
        bank: What the actions are.

    Raises:
        ValueError: When there is not at least one environment.
    """

    bank: TopologyBank | Stages

    def __init__(self, single: Any, num_envs: int | None, autoreset_mode: AutoresetMode | str) -> None:
        num_envs = len(single.prompts) if num_envs is None else num_envs
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**single.metadata, "autoreset_mode": self.autoreset_mode}
        self.num_envs, self.render_mode = num_envs, None
        self.tables, self.prompts = single.tables, single.prompts
        self.feature_set, self.feature_names = single.feature_set, single.feature_names
        self.max_new_tokens, self.capacity = single.max_new_tokens, single.capacity
        self.manifest = single.manifest
        self.single_observation_space, self.single_action_space = (
            single.observation_space,
            single.action_space,
        )
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._reward, self._actions = single.reward, int(single.action_space.n)
        self._index = {text.prompt_id: i for i, text in enumerate(self.prompts)}
        self._ids, self._replies = (
            np.array([getattr(text, name) for text in self.prompts], dtype=object)
            for name in ("prompt_id", "text")
        )
        prompt_tokens = [text.prompt_tokens for text in self.prompts]
        self._prefill_seconds = self.tables.costs.prefill_seconds[prompt_tokens]
        self._generators: list[np.random.Generator] = []
        # Text by environment and turn; a turn past the end draws a new order.
        self._order = np.zeros((num_envs, len(self.prompts)), dtype=np.int32)
        self._turn = np.full(num_envs, len(self.prompts))
        self._text, self._row = (np.zeros(num_envs, dtype=np.int64) for _ in range(2))
        self._total_tokens = np.zeros(num_envs, dtype=np.int64)
        self._total_seconds = np.zeros(num_envs)
        self._last_tokens, self._last_seconds = self._total_tokens.copy(), self._total_seconds.copy()
        self._ended, self._begun = np.ones(num_envs, dtype=np.bool_), np.zeros(num_envs, dtype=np.bool_)
        self._info: dict[str, Any] = {}

    @abstractmethod
    def _begin_rows(self, rows: Rows) -> None:
        """Prepare some environments, or all, for the first decision at their row."""

    @abstractmethod
    def _advance(self, actions: Rows, going: Flags) -> Steps:
        """Take the actions, and move the rows.

        Args:
            actions: Existing actions, ``(num_envs,)``.
            going: Where a text is in progress; elsewhere the action is ignored, and whatever is returned.
        """

    @abstractmethod
    def _observe(self) -> npt.NDArray[np.float32]:
        """What is seen now, a fresh array ``(num_envs, F)``."""

    @property
    def place(self) -> tuple[npt.NDArray[Any], Rows]:
        """Prompt ids, and the tokens of each text so far, both ``(num_envs,)``."""
        return self._ids[self._text], self.tables.positions[self._row]

    @property
    def last_step(self) -> tuple[Rows, Floats]:
        """Tokens and seconds of each text's last step, both 0 before its first, ``(num_envs,)`` each."""
        return self._last_tokens.copy(), self._last_seconds.copy()

    @property
    def episode_start(self) -> Flags:
        """Where the last reset or step began a text, ``(num_envs,)``: what policies take by that name."""
        return self._begun.copy()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin texts.

        Args:
            seed: One for each environment, or the first, from which they count up.
            options: ``{"prompt_id": …}``, an id or a sequence of one per environment that is reset, ``None``
                for the next in turn; ``{"reset_mask": …}``, bool ``(num_envs,)``, which these are, for
                ``AutoresetMode.DISABLED``.

        Returns:
            Observations, and infos: where there was no reset, those of the last step.

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
        picked = self._pick(wanted, len(rows))
        self._seed(seed, mask)
        self._begun[:] = False
        texts = self._next_texts(rows)
        self._begin(rows, np.where(picked < 0, texts, picked))
        info = self._no_step(rows)
        if not mask.all():
            first, info = info, {key: values.copy() for key, values in self._info.items()}
            _overwrite(info, rows, first)
        return self._observe(), self._keep(info)

    def step(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], Floats, Flags, Flags, dict[str, Any]]:
        """Replay one step in every environment.

        Raises:
            ResetNeeded: When no text was begun, or one has ended and ``AutoresetMode.DISABLED`` leaves it so.
            ValueError: When the actions are not one existing action per environment.
        """
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be integers, ({self.num_envs},); got {actions.dtype} {actions.shape}"
            )
        if actions.min() < 0 or actions.max() >= self._actions:
            raise ValueError(f"an action is outside 0..{self._actions - 1}, the actions there are")
        begins = np.flatnonzero(self._ended)
        if len(begins) and (not self._generators or self.autoreset_mode == AutoresetMode.DISABLED):
            raise ResetNeeded("a text has ended or none was begun: call reset() before step()")
        going = ~self._ended
        self._begun[:] = False
        step = self._advance(actions, going)
        stops = self.tables.stops[self._row]
        stops[begins] = 0
        # In no time nothing is gained or lost: where a text begins, or drafting is called free.
        counts = going & (step.seconds > 0)
        seconds = np.where(counts, step.seconds, 1.0)
        rewards = np.where(
            counts, self._reward(step.tokens, seconds, self._total_tokens, self._total_seconds), 0
        )
        self._total_tokens += step.tokens
        self._total_seconds += step.seconds
        self._last_tokens[:], self._last_seconds[:] = step.tokens, step.seconds
        self._ended = stops > 0
        info = self._step_info(np.arange(self.num_envs), step, stops)
        if len(begins):
            self._begin(begins, self._next_texts(begins))
            _overwrite(info, begins, self._no_step(begins))
        last: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and self._ended.any():
            info, last = self._restart_at_once(info)
        return self._observe(), rewards, stops == 1, stops > 1, self._keep(info) | last

    def _restart_at_once(self, info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin the next texts where one has ended: the infos now, and the last observations and infos."""
        rows, ended, observations = np.flatnonzero(self._ended), self._ended.copy(), self._observe()
        last = np.full(self.num_envs, None, dtype=object)
        for row in rows:
            last[row] = observations[row].copy()
        now = {key: values.copy() for key, values in info.items()}
        self._begin(rows, self._next_texts(rows))
        _overwrite(now, rows, self._no_step(rows))
        final = info | {f"_{key}": ended for key in info}
        return now, {"final_obs": last, "_final_obs": ended, "final_info": final, "_final_info": ended}

    def _begin(self, rows: Rows, texts: Rows) -> None:
        """Begin texts in some environments, or in all of them."""
        self._text[rows], self._row[rows] = texts, self.tables.starts[texts]
        self._total_tokens[rows], self._total_seconds[rows] = 0, 0
        self._ended[rows], self._begun[rows] = False, True
        self._last_tokens[rows], self._last_seconds[rows] = 0, 0
        self._begin_rows(rows)

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

    def _pick(self, wanted: str | Sequence[str | None] | None, count: int) -> Rows:
        """Numbers of the texts that were asked for, -1 where none was."""
        ids = [wanted] * count if wanted is None or isinstance(wanted, str) else list(wanted)
        if len(ids) != count:
            raise ValueError(f"{len(ids)} prompt ids for {count} environments")
        for prompt_id in ids:
            if prompt_id is not None and prompt_id not in self._index:
                raise ValueError(f"no prompt {prompt_id!r} in the recording; ids look like {self._ids[0]!r}")
        return np.array([-1 if prompt_id is None else self._index[prompt_id] for prompt_id in ids])

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

    def _keep(self, info: dict[str, Any]) -> dict[str, Any]:
        """Remember an info for a reset of others; a copy, since wrappers add keys to what they are given."""
        self._info = info
        return dict(info)

    def _no_step(self, rows: Rows) -> dict[str, Any]:
        """The info of environments that have made no step."""
        none = np.zeros(len(rows), dtype=np.int64)
        nothing = Steps(np.full(len(rows), "", dtype=object), none, *np.zeros((3, len(rows))))
        return self._step_info(rows, nothing, none)

    def _step_info(self, rows: Rows, step: Steps, stops: npt.NDArray[Any]) -> dict[str, Any]:
        texts = self._text[rows]
        return {
            "prompt_id": self._ids[texts],
            "prefill_seconds": self._prefill_seconds[texts],
            "tree": step.trees,
            "accept_length": np.maximum(step.tokens - 1, 0),
            "tokens": step.tokens,
            "seconds": step.seconds,
            "draft_seconds": step.draft_seconds,
            "verify_seconds": step.verify_seconds,
            **{part: np.full(len(rows), seconds) for part, seconds in NOT_PRICED.items()},
            "total_tokens": self._total_tokens[rows],
            "total_seconds": self._total_seconds[rows],
            "finish_reason": _REASONS[stops],
            "text": np.where(stops > 0, self._replies[texts], ""),
        }


def _overwrite(info: dict[str, Any], rows: Rows, values: dict[str, Any]) -> None:
    for key, value in values.items():
        info[key][rows] = value
