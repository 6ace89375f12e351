"""What the replay environments of single texts share: which text is replayed, and where in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from entmtp_env.prompt_queue import PromptQueue
from entmtp_env.replay.recording import RecordedText
from entmtp_env.replay.signals import SignalTable
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.tracker import FeatureTracker

Observation = npt.NDArray[np.float32]


class ReplayEpisodes(gymnasium.Env[Observation, int], ABC):
    """Recorded texts, one an episode; a subclass says what a step is.

    Attributes:
        tables: The recording, priced.
        prompts: Its texts.
        signals: What is seen at each of their positions.
    """

    tables: ReplayTables
    prompts: Sequence[RecordedText]
    signals: SignalTable
    _queue: PromptQueue
    _tracker: FeatureTracker
    _row: int
    _running: bool
    _last_step: tuple[int, float]

    @abstractmethod
    def _begin(self) -> dict[str, Any]:
        """Prepare the first decision of a text; the info of no step."""

    @property
    def place(self) -> tuple[str, int]:
        """Prompt id, and the tokens of its text so far: what an oracle looks its plan up by."""
        return self._text.prompt_id, int(self.tables.positions[self._row])

    @property
    def last_step(self) -> tuple[int, float]:
        """Tokens and seconds of the last step or decision, both 0 before a text's first."""
        return self._last_step

    def warm_up(self, prompt_id: str | None = None) -> None:
        """Nothing: a replay has no first-use costs."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next prompt's text.

        Args:
            seed: Fixes the order of the prompts of this and all later episodes; as in the live environment.
            options: ``{"prompt_id": …}`` picks the prompt.

        Raises:
            ValueError: When the prompt id or an option is unknown; nothing has changed.
        """
        self._queue.check(options)
        super().reset(seed=seed)
        if seed is not None:
            self._queue.clear()
        self._index, _ = self._queue.draw(self.np_random, options)
        self._text, self._row = self.prompts[self._index], int(self.tables.starts[self._index])
        self._total_tokens, self._total_seconds, self._running = 0, 0.0, True
        self._prefill_seconds = self.tables.costs.prefill_seconds.item(self._text.prompt_tokens)
        self._now = self.signals.at(self._row)
        self._tracker.reset(self.signals.first(self._now))
        return self._tracker.observe(), self._begin()

    def close(self) -> None:
        """End the text, as in the live environment."""
        self._running = False
