"""The best possible decisions of a staged scheduler on recorded texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.stages import DEEPER
from entmtp_env.replay.staged_env import StagedReplayEnv
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StagedOracle:
    """The decisions that know every future acceptance: no staged policy takes less time for any text.

    Attributes:
        env: What was solved.
        values: Least seconds from each row to the end of its text, ``(R,)``.
        depths: Depths that the best schedule drafts at each row, ``(R,)``; the first of equally good choices.
        actions: The action by which it verifies then, ``(R,)``.
        static_values: Seconds from each row to the end with the same depth and budget throughout,
            ``(R, D + 1, m)``; infinite where the depth does not fill the budget.
    """

    env: StagedReplayEnv | StagedReplayVectorEnv
    values: Floats
    depths: npt.NDArray[np.int64]
    actions: npt.NDArray[np.int64]
    static_values: Floats

    @property
    def seconds(self) -> Floats:
        """Least decoding time of each text, ``(texts,)``."""
        return self.values[self.env.tables.starts]

    @cached_property
    def best_static(self) -> tuple[int, int]:
        """Depth and number of the budget that are fastest throughout, over all texts; the first of equals."""
        seconds = self.static_values[self.env.tables.starts].sum(axis=0)
        depth, budget = np.unravel_index(seconds.argmin(), seconds.shape)
        return int(depth), int(budget)

    def static_seconds(self, depth: int, budget: int) -> Floats:
        """Decoding time of each text with the same depth and budget, by number, throughout, ``(texts,)``."""
        return self.static_values[self.env.tables.starts, depth, budget]

    def schedule(self, text: int) -> list[int]:
        """The best decisions for one text."""
        tables = self.env.tables
        actions: list[int] = []
        row = int(tables.starts[text])
        while not tables.stops[row]:
            depth, action = int(self.depths[row]), int(self.actions[row])
            actions += [DEEPER] * depth + [action]
            accepted = int(self.env.staged.accepts[row, depth, action - 1])
            row += min(accepted + 1, int(tables.ends[text]) - row)
        return actions


def solve_staged(env: StagedReplayEnv | StagedReplayVectorEnv) -> StagedOracle:
    """Find the best decisions by dynamic programming over the positions, from the last to the first.

    ``V(p) = min_{d, n} [draft_d(p) + verify_n(p) + V(p + tokens_{d, n}(p))]``, 0 where the text has ended;
    d goes over the depths, n over the budgets that they can fill.

    Args:
        env: Recording, drafts and costs.
    """
    tables, costs, stages = env.tables, env.costs, env.stages
    rows, budgets = len(tables.stops), len(stages.budgets)
    values, choices = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    legal = stages.masks[:, 1:]
    static_values = np.where(legal, np.zeros((rows, *legal.shape)), np.inf)
    depth, budget = np.ogrid[: legal.shape[0], : legal.shape[1]]
    steps = tables.ends - tables.starts
    for position in range(int(steps.max()) - 1, -1, -1):
        # All texts that are at least so long, side by side.
        texts = np.flatnonzero(steps > position)
        here = tables.starts[texts] + position
        texts, here = texts[tables.stops[here] == 0], here[tables.stops[here] == 0]
        tokens = np.minimum(env.staged.accepts[here] + 1, (tables.ends[texts] - here)[:, None, None])
        contexts = tables.contexts[here]
        drafting, verifying = costs.drafted_seconds[:, contexts].T, costs.verify_seconds[:, contexts].T
        behind, seconds = here[:, None, None] + tokens, drafting[:, :, None] + verifying[:, None]
        static_values[here] = seconds + static_values[behind, depth, budget]
        flat = np.where(legal, seconds + values[behind], np.inf).reshape(len(here), -1)
        choices[here] = flat.argmin(axis=1)
        values[here] = flat.min(axis=1)
    return StagedOracle(env, values, choices // budgets, choices % budgets + 1, static_values)
