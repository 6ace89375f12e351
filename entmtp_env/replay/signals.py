"""What the decoder knew at every position, for the feature tracker of a replay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.features import Probe
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.tracker import Signals

_HEADS = 10  # first column of the head confidences; the entropies and the tree values follow


class SignalTable:
    """Signals by row of the recording, for one environment or for many in lock-step.

    Args:
        tables: The recording and the bank.
        probe: What is drafted before a decision.

    Attributes:
        values: float32 ``(R, C)``, side by side: p_0, its entropy, generated and context fraction, five
            shapes of the root, whether the first draft is right, D head confidences, D head entropies, and
            with ``probe="union"`` K tree values.

    Raises:
        ValueError: When ``probe="union"`` and the recording lacks path values of nodes of the bank.
    """

    def __init__(self, tables: ReplayTables, probe: Probe) -> None:
        recording, bank, depth = tables.recording, tables.bank, tables.bank.depth
        self._depth, self._union, self._probed = depth, probe == "union", probe != "none"
        # How far the greedy chain is drafted: by each tree, and before the decision.
        known = [tree.greedy_depth for tree in bank]
        self._probe_known = {
            "none": 0,
            "first": min(1, depth),
            "chain": depth,
            "union": bank.union.greedy_depth,
        }[probe]
        self._drafts = [len(tree) > 0 for tree in bank]
        self._all_known, self._all_drafts = np.array(known), np.array(self._drafts)
        self._heads = [self._columns(depths) for depths in known]
        self._probe_heads = self._columns(self._probe_known)
        parts = [
            recording.base_top1[:, None],
            recording.base_entropy[:, None],
            tables.positions[:, None] / tables.max_new_tokens,
            tables.contexts[:, None] / tables.capacity,
            recording.root_shape,
            recording.ranks[:, :1] == 0,
            recording.head_top1[:, :depth],
            recording.head_entropy[:, :depth],
        ]
        if self._union:
            parts.append(_tree_values(tables))
        self.values: npt.NDArray[np.float32] = np.concatenate(parts, axis=1, dtype=np.float32)

    def __deepcopy__(self, memo: dict[int, Any]) -> SignalTable:
        """Itself, since it is read-only: copies of an environment share it."""
        return self

    def at(self, row: int) -> list[float]:
        """The values of a row, as plain floats."""
        values: list[float] = self.values[row].tolist()
        return values

    def first(self, now: list[float]) -> Signals:
        """Plain floats, at the first decision of a text, from the values of its row."""
        return self._floats(now, now, self._probe_heads, 0, math.nan, 0)

    def after(
        self, last: list[float], action: int, accept_length: int, now: list[float], ended: bool
    ) -> Signals:
        """Plain floats, at the decision behind a step.

        Args:
            last: The values of the row of the step.
            action: Its tree.
            accept_length: Its accepted drafts.
            now: The values of the row of the decision.
            ended: Whether the text has ended, so that nothing is probed any more.
        """
        right = last[_HEADS - 1] if self._drafts[action] else math.nan
        if self._probed and not ended:
            return self._floats(now, now, self._probe_heads, accept_length, right, action)
        return self._floats(now, last, self._heads[action], accept_length, right, action)

    def _floats(
        self,
        now: list[float],
        draft: list[float],
        heads: tuple[slice, slice],
        accept_length: int,
        right: float,
        action: int,
    ) -> Signals:
        top1, entropy = heads
        return Signals(
            now[0],
            now[1],
            draft[top1],
            draft[entropy],
            accept_length,
            right,
            now[2],
            now[3],
            action,
            now[4 : _HEADS - 1],
            now[_HEADS + 2 * self._depth :] if self._union else None,
        )

    def _columns(self, known: int) -> tuple[slice, slice]:
        """Where a row has the confidences and the entropies of the first depths."""
        entropies = _HEADS + self._depth
        return slice(_HEADS, _HEADS + known), slice(entropies, entropies + known)

    def first_of_many(self, rows: npt.NDArray[np.int64]) -> Signals:
        """Arrays ``(n,)``, at the first decisions of texts."""
        values = self.values.take(rows, axis=0)
        none = np.zeros(len(rows), dtype=np.float32)
        return self._arrays(values, values, np.full(len(rows), self._probe_known), none, none, none)

    def after_many(
        self,
        before: npt.NDArray[np.int64],
        actions: npt.NDArray[np.int64],
        accept_lengths: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        ended: npt.NDArray[np.bool_],
    ) -> Signals:
        """Arrays ``(n,)``, at the decisions behind steps; arguments as in :meth:`after`, each ``(n,)``."""
        now, last = self.values.take(rows, axis=0), self.values.take(before, axis=0)
        right = np.where(self._all_drafts[actions], last[:, _HEADS - 1], np.float32(np.nan))
        known = self._all_known[actions]
        if self._probed:
            known = np.where(ended, known, self._probe_known)
            last = np.where(ended[:, None], last, now)
        lengths, trees = accept_lengths.astype(np.float32), actions.astype(np.float32)
        return self._arrays(now, last, known, lengths, right, trees)

    def _arrays(
        self,
        now: npt.NDArray[np.float32],
        draft: npt.NDArray[np.float32],
        known: npt.NDArray[np.int64],
        accept_lengths: npt.NDArray[np.float32],
        right: npt.NDArray[np.float32],
        actions: npt.NDArray[np.float32],
    ) -> Signals:
        depth, entropies = self._depth, _HEADS + self._depth
        columns = np.ascontiguousarray(now.T)
        heads = np.ascontiguousarray(draft[:, _HEADS : entropies + depth].T)
        missing = np.arange(depth)[:, None] >= known
        heads[:depth][missing] = np.nan
        heads[depth:][missing] = np.nan
        return Signals(
            base_top1=columns[0],
            base_entropy=columns[1],
            head_top1=list(heads[:depth]),
            head_entropy=list(heads[depth:]),
            accept_length=accept_lengths,
            first_draft_right=right,
            generated_fraction=columns[2],
            context_fraction=columns[3],
            action=actions,
            root_shape=list(columns[4 : _HEADS - 1]),
            tree_value=list(columns[entropies + depth :]) if self._union else None,
        )


def _tree_values(tables: ReplayTables) -> npt.NDArray[np.float64]:
    """Sum of path values over each tree's nodes at each row, ``(R, K)``; 0 where texts have ended."""
    candidates = tables.recording.candidates
    missing = {node for tree in tables.bank for node in tree.nodes} - set(candidates.nodes)
    if missing:
        raise ValueError(
            f"probe='union' needs the path values of {len(missing)} nodes that the recording does not keep; "
            "record them with 'python -m train record --candidates' and this bank"
        )
    members = np.array(
        [[node in tree.rows for tree in tables.bank] for node in candidates.nodes], dtype=float
    )
    values = tables.recording.path_values.astype(np.float64) @ members
    values[tables.stops > 0] = 0
    return values
