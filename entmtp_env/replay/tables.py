"""A recording priced for a bank: all that a decode step would tell, looked up by position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.features import Probe
from entmtp_env.replay.costs import Costs, StepCosts, check_probe, warn_of_others
from entmtp_env.replay.recording import Recording
from entmtp_env.trees import TopologyBank
from entmtp_env.trees.walk import accept_lengths

STOP_REASONS = ("", "eos", "length", "context")
"""Finish reasons by the code in :attr:`ReplayTables.stops`."""


@dataclass(frozen=True)
class ReplayTables:
    """What the replay of a recording needs; read-only, shared by its environments and the oracle.

    A *row* is a position of a text as root, numbered through the whole recording (R rows); K trees.

    Attributes:
        recording: The recording.
        bank: The trees.
        max_new_tokens: Token cap, at most that of the recording.
        capacity: KV rows; a text ends before a step that might not fit.
        costs: Seconds by tree and committed tokens, ``(K, capacity + 1)``.
    """

    recording: Recording
    bank: TopologyBank
    max_new_tokens: int
    capacity: int
    costs: StepCosts

    @classmethod
    def build(
        cls,
        recording: Recording,
        costs: Costs,
        bank: TopologyBank,
        max_new_tokens: int | None = None,
        capacity: int = 2048,
        probe: Probe = "none",
    ) -> ReplayTables:
        """Price a recording; a warning tells when the costs are of another model.

        Args:
            recording: The texts.
            costs: Seconds of a step.
            bank: The trees.
            max_new_tokens: Token cap; that of the recording by default.
            capacity: KV rows.
            probe: What is drafted before a decision; its time must be in that of the step.

        Raises:
            ValueError: When the trees are deeper than the recorded heads or not priced, the cap exceeds the
                recorded one, the costs are those of another probe, or a prompt does not fit.
        """
        cap = int(recording.manifest["max_new_tokens"])
        wanted = cap if max_new_tokens is None else max_new_tokens
        if not 1 <= wanted <= cap:
            raise ValueError(
                f"max_new_tokens={wanted} must be 1 to {cap}, the cap of the recording; record longer texts "
                "with 'python -m train record --max-new-tokens'"
            )
        if bank.depth > recording.depth:
            raise ValueError(
                f"bank {bank.name!r} has depth {bank.depth}, the recording only {recording.depth} heads"
            )
        for text in recording.texts:
            if text.prompt_tokens + 1 + bank.max_nodes > capacity:
                raise ValueError(
                    f"prompt {text.prompt_id!r} of {text.prompt_tokens} tokens and a tree of "
                    f"{bank.max_nodes} nodes do not fit into {capacity} KV rows; raise the capacity"
                )
        check_probe(costs, probe)
        warn_of_others(costs, recording.manifest)
        return cls(recording, bank, wanted, capacity, costs.at(bank, np.arange(capacity + 1)))

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First row of each text, ``(texts,)``."""
        return self.recording.offsets[:-1]

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """Tokens of the text before each row, ``(R,)``."""
        lengths = np.diff(self.recording.offsets)
        return np.arange(self.recording.offsets[-1]) - np.repeat(self.starts, lengths)

    @cached_property
    def contexts(self) -> npt.NDArray[np.int64]:
        """Committed tokens at each row, prompt included, ``(R,)``; at most the capacity."""
        prompts = [text.prompt_tokens for text in self.recording.texts]
        contexts = np.repeat(prompts, np.diff(self.recording.offsets)) + self.positions
        return np.minimum(contexts, self.capacity)

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Row at which each text has ended, by itself or at the cap, ``(texts,)``."""
        return self.starts + np.minimum(self.recording.lengths, self.max_new_tokens)

    @cached_property
    def accepts(self) -> npt.NDArray[np.int64]:
        """Accepted drafts of each tree at each row, as if the text went on, ``(K, R)``."""
        return np.stack([accept_lengths(tree, self.recording.ranks) for tree in self.bank])

    @cached_property
    def emitted(self) -> npt.NDArray[np.uint8]:
        """Tokens that a step with each tree adds at each row: not past the end of the text, ``(K, R)``."""
        lengths = np.diff(self.recording.offsets)
        room = np.repeat(self.ends, lengths) - np.arange(self.recording.offsets[-1])
        return np.minimum(self.accepts + 1, np.maximum(room, 0)).astype(np.uint8)

    @cached_property
    def stops(self) -> npt.NDArray[np.uint8]:
        """Whether and why a text has ended when a step reaches a row, codes of STOP_REASONS, ``(R,)``."""
        stops = np.where(self.contexts + 1 + self.bank.max_nodes > self.capacity, 3, 0).astype(np.uint8)
        for text, end, length in zip(self.recording.texts, self.ends, self.recording.lengths, strict=True):
            if text.finish_reason == "eos" and length <= self.max_new_tokens:
                stops[end] = 1
            else:
                stops[end] = 2 if length >= self.max_new_tokens else 3
        return stops

    def check_lengths(self, texts: npt.ArrayLike | None = None) -> None:
        """Check that no schedule ends a text early, for only among equally long texts is less time better.

        Args:
            texts: Numbers of the texts in question; by default all.

        Raises:
            ValueError: When the KV cache may end one: where, depends on the schedule.
        """
        for text in np.arange(len(self.starts)) if texts is None else np.asarray(texts):
            start, end = self.starts[text], self.ends[text]
            if self.stops[start:end].any():
                own = self.recording.texts[text]
                raise ValueError(
                    f"text {own.prompt_id!r} of {own.prompt_tokens} + {end - start} tokens and a tree of "
                    f"{self.bank.max_nodes} nodes do not fit into {self.capacity} KV rows, so that its "
                    "length would depend on the schedule; raise the capacity"
                )

    @cached_property
    def prices(self) -> list[list[tuple[float, float, float]]]:
        """All, draft and verify seconds by tree and committed tokens: :attr:`costs` for one step at a time.

        Plain floats side by side are read in a fraction of the time of an item of each array. They go as far
        as the recording does.
        """
        lengths = slice(int(self.contexts.max()) + 1)
        parts = zip(self.costs.seconds, self.costs.draft_seconds, self.costs.verify_seconds, strict=True)
        return [list(zip(*(part[lengths].tolist() for part in tree), strict=True)) for tree in parts]

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayTables:
        """Itself, since it is read-only: copies of an environment share it."""
        return self

    @property
    def manifest(self) -> dict[str, Any]:
        """What a result made with these tables depends on."""
        return {
            **self.recording.manifest,
            "bank": self.bank.name,
            "bank_fingerprint": self.bank.fingerprint,
            "max_new_tokens": self.max_new_tokens,
            "capacity": self.capacity,
            "replay": True,
            "approximate": self.recording.approximate,
        }
