"""Which trees of a large bank a scheduler needs: subset selection by the oracle's time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from entmtp_env.replay.tables import ReplayTables

Floats = npt.NDArray[np.float64]

_LESS = 1 - 1e-12
"""What counts as less: rounding must choose no tree."""


class BankSearch:
    """Time of the best schedules over subsets of the N trees of a bank, for many subsets at once.

    Args:
        tables: Recorded texts, priced for all N trees; no text may end for want of KV rows.

    Attributes:
        count: N.
        empty: Index of the empty tree, which every bank keeps.
    """

    def __init__(self, tables: ReplayTables) -> None:
        self.count = len(tables.bank)
        self.empty = [len(tree) for tree in tables.bank].index(0)
        # Counted from its end, every text is as long as the longest: steps before its start take no time.
        rows = tables.ends - 1 - np.arange((tables.ends - tables.starts).max())[:, None]
        inside = rows >= tables.starts
        rows = np.maximum(rows, tables.starts)
        seconds = np.where(inside, tables.costs.seconds[:, tables.contexts[rows]], 0)
        tokens = np.where(inside, tables.emitted[:, rows], 1)
        # (positions, N, texts), the last position of each text first.
        self._seconds, self._before = np.swapaxes(seconds, 0, 1), np.swapaxes(tokens, 0, 1) - 1
        self._reach = int(self._before.max()) + 1

    def seconds(self, kept: Sequence[int], others: Sequence[int] | slice = slice(None)) -> Floats:
        """Least time of each text with the trees ``kept`` and each one of ``others``, ``(others, texts)``.

        With nothing kept, that is the time of each tree alone. Others are all N by default.
        """
        seconds, before = self._seconds[:, others], self._before[:, others].astype(np.intp)
        later = np.zeros((self._reach, *seconds.shape[1:]))
        for own, own_before, fixed in zip(seconds, before, self._fixed(kept), strict=True):
            with_own = own + np.take_along_axis(later, own_before[None], axis=0)[0]
            now = np.minimum(with_own, (fixed[:, None] + later).min(axis=0))
            later = np.concatenate((now[None], later[:-1]))
        return later[0]

    def oracle(self, kept: Sequence[int]) -> Floats:
        """Least time of each text with the trees ``kept``, ``(texts,)``."""
        return self.seconds(kept[1:], kept[:1])[0]

    def _fixed(self, kept: Sequence[int]) -> Floats:
        """Least time of a step of a kept tree that emits 1, 2, ... tokens, ``(positions, reach, texts)``."""
        positions, _, texts = self._seconds.shape
        fixed = np.full((positions, self._reach, texts), np.inf)
        for tree in kept:
            before = self._before[:, tree, None].astype(np.intp)
            least = np.minimum(np.take_along_axis(fixed, before, axis=1), self._seconds[:, tree, None])
            np.put_along_axis(fixed, before, least, axis=1)
        return fixed


def greedy(search: BankSearch, size: int, bar: Progress, among: Sequence[int] | None = None) -> list[int]:
    """Start from the empty tree, and add again and again the tree that lowers the oracle's time most.

    Args:
        search: The candidates.
        size: Trees to add; fewer are when no other lowers it.
        bar: Where to show how far it is.
        among: Candidates to choose from; all by default.

    Returns:
        Indices in the order in which they were kept, the empty tree first; of equally good ones the first.
    """
    kept = [search.empty]
    others = list(range(search.count) if among is None else among)
    least = search.oracle(kept).sum()
    for _ in bar.track(range(size), description="choosing trees"):
        with_each = search.seconds(kept, others).sum(axis=1)
        if with_each.min() >= least * _LESS:
            break
        least = with_each.min()
        kept.append(others[int(with_each.argmin())])
    return kept


def exchange(search: BankSearch, kept: Sequence[int], bar: Progress) -> list[int]:
    """Replace a kept tree by one left out, the best replacement first, until none lowers the oracle's time.

    Args:
        search: The candidates.
        kept: Trees to begin with; the empty one stays.
        bar: Where to show how far it is.

    Returns:
        Indices, the empty tree first.
    """
    kept = list(kept)
    while len(kept) > 1:
        replacements = []
        for out in bar.track(kept[1:], description="trying exchanges"):
            others = [tree for tree in kept if tree != out]
            with_each = search.seconds(others).sum(axis=1)
            replacements.append((float(with_each.min()), [*others, int(with_each.argmin())]))
        least, best = min(replacements)
        if least >= search.oracle(kept).sum() * _LESS:
            break
        kept = best
    return kept


def fastest(search: BankSearch, size: int) -> list[int]:
    """The empty tree, then the ``size`` trees that are fastest alone: what a choice is compared to."""
    order = np.argsort(search.seconds(()).sum(axis=1), kind="stable").tolist()
    return [search.empty, *[tree for tree in order if tree != search.empty][:size]]
