"""Texts of a recording to search draft trees on: exact for lossless rules, in seconds, without a model."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.costs import Costs, load_costs
from entmtp_env.replay.recording import IDENTITY, Recording
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import DraftTree, Path, TopologyBank
from entmtp_env.trees.walk import accept_lengths
from train.tree_search import Rollout, TreeRun

if TYPE_CHECKING:
    from train.trees import Trees

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordedTexts:
    """The texts of a recording; a rollout visits the rows at which a tree's steps begin.

    Attributes:
        recording: The recording.
        costs: What prices the steps.
        max_new_tokens: Token cap, at most that of the recording.
        capacity: KV rows; each prompt with its text and the largest tree must fit.
        fitted_to: Name of the measured table, where the costs are a formula fitted to it.
    """

    recording: Recording
    costs: Costs
    max_new_tokens: int
    capacity: int
    fitted_to: str = ""

    @classmethod
    def open(cls, config: Trees) -> RecordedTexts:
        """Load recording and costs.

        Raises:
            FileNotFoundError: When a recording or the costs are not there.
            ValueError: When a file is damaged, or the recording has fewer texts than asked for.
        """
        recording = load_recording(config.recordings)
        count = config.count(len(recording.texts), "the recording")
        cap = min(config.max_new_tokens, int(recording.manifest["max_new_tokens"]))
        return cls(recording.select(range(count)), load_costs(config.costs), cap, config.capacity)

    @property
    def depth(self) -> int:
        """Number of draft heads."""
        return self.recording.depth

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self.recording.texts)

    @property
    def settings(self) -> dict[str, Any]:
        """What the recorded texts are, and how much of them counts."""
        identity = {key: self.recording.manifest[key] for key in IDENTITY}
        return identity | {"max_new_tokens": self.max_new_tokens, "recording": self.recording.fingerprint}

    @property
    def manifest(self) -> dict[str, Any]:
        """Of recording and costs."""
        analytic = f"a formula fitted to {self.fitted_to}" if self.fitted_to else "analytic costs"
        label = self.costs.name if isinstance(self.costs, CostTable) else analytic
        return {
            **self.recording.manifest,
            "prompt_ids": [text.prompt_id for text in self.recording.texts],
            "max_new_tokens": self.max_new_tokens,
            "approximate": self.recording.approximate,
            "costs": {"name": self.costs.name, "label": label, **self.costs.manifest},
        }

    @property
    def prompt_tokens(self) -> dict[str, int]:
        """Tokens of each prompt, by its id."""
        return {text.prompt_id: text.prompt_tokens for text in self.recording.texts}

    @cached_property
    def room(self) -> Rows:
        """Tokens from each row to the end of its text, ``(R,)``; negative behind it."""
        lengths = np.diff(self.recording.offsets)
        ends = self.recording.offsets[:-1] + np.minimum(self.recording.lengths, self.max_new_tokens)
        return np.repeat(ends, lengths) - np.arange(self.recording.offsets[-1])

    @property
    def ranks(self) -> npt.NDArray[np.int32]:
        """Ranks of every row inside a text, ``(tokens, depth)``."""
        return self.recording.ranks[self.room > 0]

    def walk(self, tree: DraftTree) -> tuple[Rows, Rows]:
        """The rows at which the steps of ``tree`` begin, text by text side by side, and their accept lengths.

        Raises:
            ValueError: When the tree is deeper than the recorded heads.
        """
        accepts = np.minimum(accept_lengths(tree, self.recording.ranks), self.room - 1)
        visited, rows = [], self.recording.offsets[:-1]
        while len(rows):
            visited.append(rows)
            rows = rows + accepts[rows] + 1
            rows = rows[self.room[rows] > 0]
        steps = np.concatenate(visited)
        return steps, accepts[steps]

    def rollout(self, tree: DraftTree, nodes: Sequence[Path], tick: Callable[[], object]) -> Rollout:
        """A candidate is accepted where the ranks begin with it and the text goes so far."""
        rows, accepts = self.walk(tree)
        ranks, room = self.recording.ranks[rows], self.room[rows]
        gains = {
            node: int(((ranks[:, : len(node)] == node).all(axis=1) & (len(node) < room)).sum())
            for node in nodes
        }
        for _ in range(self.count):
            tick()
        return Rollout(len(rows), int(accepts.sum()), gains)

    def run(self, bank: TopologyBank) -> list[TreeRun]:
        """Walk through all texts with every tree, each step at its price.

        Raises:
            ValueError: When the costs are those of a probe, or a prompt does not fit.
        """
        tables = ReplayTables.build(self.recording, self.costs, bank, self.max_new_tokens, self.capacity)
        tokens = int(self.room[self.recording.offsets[:-1]].sum())
        prefill = tables.costs.prefill_seconds[list(self.prompt_tokens.values())].sum()
        runs = []
        for tree, seconds in zip(bank, tables.costs.seconds, strict=True):
            rows, _ = self.walk(tree)
            runs.append(
                TreeRun(tokens, len(rows), float(seconds[tables.contexts[rows]].sum()), float(prefill))
            )
        return runs

    def price(self, bank: TopologyBank) -> RecordedTexts:
        """These texts with costs that price every tree of ``bank`` on equal terms.

        Where a measured table lacks one of them, all are priced by the formula fitted to the table.
        """
        # A probe's time would be lost in a fit; that such a table prices no plain step is said by run().
        if not isinstance(self.costs, CostTable) or self.costs.probe not in (None, "none"):
            return self
        measured = {tree.fingerprint for tree in self.costs.trees}
        missing = sum(tree.fingerprint not in measured for tree in bank)
        if not missing:
            return self
        fit = AnalyticCosts.fit(self.costs)
        worst = np.abs(fit.relative_errors(self.costs)).max()
        print(
            f"{missing} of {len(bank)} trees are not in the cost table {self.costs.name!r}: all are priced "
            f"by the formula fitted to it, which is at most {worst:.1%} off there; to measure them: "
            "python -m train costs --bank <out>/trees.json",
            file=sys.stderr,
        )
        return dataclasses.replace(self, costs=fit, fitted_to=self.costs.name)
