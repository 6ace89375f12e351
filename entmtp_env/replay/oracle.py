"""The best possible schedule of recorded texts, and what the fixed trees reach beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.tables import ReplayTables

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Oracle:
    """The schedule that knows every future acceptance: no policy takes less time for any text.

    Attributes:
        tables: What was solved.
        values: Least seconds from each row to the end of its text, ``(R,)``.
        actions: The tree that the best schedule takes at each row, ``(R,)``; the first of equally good ones.
        static_values: Seconds from each row to the end with one tree throughout, ``(K, R)``.
    """

    tables: ReplayTables
    values: Floats
    actions: npt.NDArray[np.int64]
    static_values: Floats

    @property
    def seconds(self) -> Floats:
        """Least decoding time of each text, ``(texts,)``."""
        return self.values[self.tables.starts]

    @property
    def static_seconds(self) -> Floats:
        """Decoding time of each text with each tree alone, ``(K, texts)``."""
        return self.static_values[:, self.tables.starts]

    @cached_property
    def best_static(self) -> int:
        """The tree that is fastest alone over all texts, the first of equals."""
        return int(self.static_seconds.sum(axis=1).argmin())

    @property
    def headroom(self) -> float:
        """Time of the best static tree over that of the best schedule; 1 when there is nothing to win."""
        return float(self.static_seconds[self.best_static].sum() / self.seconds.sum())

    def regret(self, seconds: Floats) -> Floats:
        """Times of a policy, ``(texts,)``, over the least possible ones; 1 is optimal.

        Raises:
            ValueError: When there is not one time per text.
        """
        if np.shape(seconds) != self.seconds.shape:
            raise ValueError(f"expected one time per text, {self.seconds.shape}, got {np.shape(seconds)}")
        return seconds / self.seconds

    def schedule(self, text: int) -> list[int]:
        """The best trees for one text, step by step."""
        row, trees = int(self.tables.starts[text]), []
        while not self.tables.stops[row]:
            trees.append(int(self.actions[row]))
            row += int(self.tables.emitted[trees[-1], row])
        return trees


def solve(tables: ReplayTables) -> Oracle:
    """Find the best schedules by dynamic programming over the positions, from the last to the first.

    ``V(p) = min_a [seconds_a(p) + V(p + tokens_a(p))]``, 0 where the text has ended.

    Args:
        tables: The recording, priced.
    """
    rows = len(tables.stops)
    values, actions = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    static_values = np.zeros((len(tables.bank), rows))
    trees = np.arange(len(tables.bank))[:, None]
    steps = tables.ends - tables.starts
    for position in range(int(steps.max()) - 1, -1, -1):
        # All texts that are at least so long, side by side.
        here = tables.starts[steps > position] + position
        here = here[tables.stops[here] == 0]
        behind = here + tables.emitted[:, here]
        seconds = tables.costs.seconds[:, tables.contexts[here]]
        choices = seconds + values[behind]
        actions[here] = choices.argmin(axis=0)
        values[here] = choices.min(axis=0)
        static_values[:, here] = seconds + static_values[trees, behind]
    return Oracle(tables, values, actions, static_values)
