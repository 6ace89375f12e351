"""A choice of trees: its numbers and its tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.markup import escape
from rich.table import Table

from entmtp_env.trees import DraftTree, TopologyBank
from train.bank_search import BankSearch, Floats

LEGEND = (
    "alone: the tree at every step; oracle: the best possible schedule over the trees so far; % of all: of "
    "the oracle over all candidates; tok/s of decode steps, without prefill"
)
"""What the columns mean; said once below the tables."""


@dataclass(frozen=True)
class Choice:
    """Trees in the order in which they were chosen.

    Attributes:
        trees: The trees, k.
        tokens: Tokens of each text, ``(texts,)``.
        limit: Least seconds of each text with all candidates, ``(texts,)``.
        alone: Seconds of each text with each tree alone, ``(k, texts)``.
        oracle: Least seconds of each text with the first 1, 2, ... trees, ``(k, texts)``.
    """

    trees: tuple[DraftTree, ...]
    tokens: npt.NDArray[np.int64]
    limit: Floats
    alone: Floats
    oracle: Floats

    @classmethod
    def of(
        cls, search: BankSearch, bank: TopologyBank, tokens: npt.NDArray[np.int64], kept: Sequence[int]
    ) -> Choice:
        """Take the times of the trees ``kept`` of ``bank``, the empty one first."""
        return cls(
            trees=tuple(bank[tree] for tree in kept),
            tokens=tokens,
            limit=search.oracle(range(search.count)),
            alone=search.seconds((), kept),
            oracle=np.stack([search.oracle(kept[: n + 1]) for n in range(len(kept))]),
        )

    def rate(self, seconds: Floats) -> Any:
        """Tokens per second of times ``(..., texts)``."""
        return self.tokens.sum() / seconds.sum(axis=-1)

    def select(self, texts: slice) -> Choice:
        """The same on some of the texts."""
        return Choice(
            self.trees,
            self.tokens[texts],
            self.limit[texts],
            self.alone[:, texts],
            self.oracle[:, texts],
        )

    @property
    def share(self) -> float:
        """Throughput of the oracle over all the trees, over that of the oracle over all candidates."""
        return float(self.limit.sum() / self.oracle[-1].sum())

    @property
    def best(self) -> tuple[str, float]:
        """The tree that is fastest alone, and its tokens per second."""
        rates = self.rate(self.alone)
        return self.trees[int(rates.argmax())].name, float(rates.max())

    def rows(self) -> list[dict[str, Any]]:
        """Trees and tokens per second, as JSON values."""
        rates = zip(self.trees, self.rate(self.alone), self.rate(self.oracle), strict=True)
        return [
            {
                "name": tree.name,
                "nodes": len(tree),
                "depth": tree.depth,
                "tokens_per_second_alone": float(alone),
                "oracle_tokens_per_second": float(oracle),
            }
            for tree, alone, oracle in rates
        ]


def choice_table(title: str, chosen: Choice, singles: Choice) -> Table:
    """Build the table of the trees as they were chosen, beside those that are fastest alone."""
    table = _new_table(title)
    for heading in ("chosen for a scheduler", "fastest alone"):
        table.add_column(heading, overflow="fold")
        for column in ("nodes", "depth", "alone", "oracle", "% of all"):
            table.add_column(column, justify="right", no_wrap=True)
    sides = [_cells(choice) for choice in (chosen, singles)]
    for left, right in itertools.zip_longest(*sides, fillvalue=[""] * 6):
        table.add_row(*left, *right)
    return table


def recordings_table(chosen: Choice, singles: Choice, texts: Mapping[str, slice]) -> Table:
    """Build the table of what both choices are worth on each recording.

    Args:
        chosen: The trees chosen for a scheduler.
        singles: Those that are fastest alone.
        texts: Which texts belong to each recording.
    """
    table = _new_table("on each recording")
    table.add_column("recording", overflow="fold")
    headers = (
        "oracle of all\ntok/s",
        "chosen\n% of all",
        "fastest alone\n% of all",
        "best tree of chosen\ntok/s",
    )
    for header in (*headers, "best tree of\nfastest alone, tok/s"):
        table.add_column(header, justify="right")
    for name, own in texts.items():
        left, right = chosen.select(own), singles.select(own)
        table.add_row(
            escape(name),
            f"{left.rate(left.limit):.1f}",
            f"{100 * left.share:.2f}",
            f"{100 * right.share:.2f}",
            *(f"{rate:.1f}\n{escape(tree)}" for tree, rate in (left.best, right.best)),
        )
    return table


def _cells(choice: Choice) -> list[list[str]]:
    limit = choice.rate(choice.limit)
    return [
        [
            escape(row["name"]),
            str(row["nodes"]),
            str(row["depth"]),
            f"{row['tokens_per_second_alone']:.1f}",
            f"{row['oracle_tokens_per_second']:.1f}",
            f"{100 * row['oracle_tokens_per_second'] / limit:.2f}",
        ]
        for row in choice.rows()
    ]


def _new_table(title: str) -> Table:
    return Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
