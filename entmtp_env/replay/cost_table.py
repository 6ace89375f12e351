"""Measured seconds of a decode step: trees × context lengths, of one machine, in a JSON file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.files import read_json, write_text_atomically
from entmtp_env.trees import DraftTree, TopologyBank

FORMAT = 1
_PER_TREE = ("seconds", "lower", "upper", "draft_seconds", "verify_seconds")
_MAY_BE_ZERO = ("draft_seconds", "verify_seconds")

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepCosts:
    """What the K trees of a bank cost at N context lengths, in seconds.

    Attributes:
        seconds: A whole decode step, as ``info["seconds"]`` counts it, float64 ``(K, N)``.
        draft_seconds: Its drafting, float64 ``(K, N)``.
        verify_seconds: Its pass of the base model, float64 ``(K, N)``.
        prefill_seconds: Prefill of a prompt of that length, float64 ``(N,)``.
    """

    seconds: Seconds
    draft_seconds: Seconds
    verify_seconds: Seconds
    prefill_seconds: Seconds


@dataclass(frozen=True, eq=False)
class CostTable:
    """Seconds of a live decode step, measured for K trees at C context lengths on one machine.

    Attributes:
        name: Name of the table.
        trees: The trees, K.
        contexts: Committed tokens when the step begins, rising, int64 ``(C,)``.
        seconds: Median of a whole step, float64 ``(K, C)``.
        lower: Lower quartile of the same, float64 ``(K, C)``.
        upper: Upper quartile, float64 ``(K, C)``.
        draft_seconds: Median of the drafting, a probe included, float64 ``(K, C)``.
        verify_seconds: Median of the base model's pass, float64 ``(K, C)``.
        prefill_seconds: Median of the prefill of a prompt of that length, float64 ``(C,)``.
        manifest: Machine, model and heads that were measured, and how; JSON values.
    """

    name: str
    trees: tuple[DraftTree, ...]
    contexts: npt.NDArray[np.int64]
    seconds: Seconds
    lower: Seconds
    upper: Seconds
    draft_seconds: Seconds
    verify_seconds: Seconds
    prefill_seconds: Seconds
    manifest: dict[str, Any]

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: When they do not; the message names the part.
        """
        if not all(isinstance(name, str) for name in (self.name, *(tree.name for tree in self.trees))):
            raise ValueError("the names of a cost table and of its trees must be strings")
        if not isinstance(self.manifest, dict):
            raise ValueError(f"the manifest must be a JSON object, got {type(self.manifest).__name__}")
        shape = (len(self.trees), len(self.contexts))
        if not all(shape):
            raise ValueError("a cost table needs at least one tree and one context length")
        whole = self.contexts.ndim == 1 and self.contexts.dtype == np.int64
        if not whole or self.contexts[0] < 1 or (np.diff(self.contexts) < 1).any():
            raise ValueError(f"contexts must be rising int64 >= 1, got {self.contexts.tolist()}")
        for key in (*_PER_TREE, "prefill_seconds"):
            values, expected = getattr(self, key), shape if key in _PER_TREE else shape[1:]
            if values.shape != expected:
                raise ValueError(f"{key} has shape {values.shape}, expected {expected}")
            if not (np.isfinite(values) & ((values > 0) | ((values == 0) & (key in _MAY_BE_ZERO)))).all():
                raise ValueError(f"{key} has values that are no positive numbers of seconds")
        if not ((self.lower <= self.seconds) & (self.seconds <= self.upper)).all():
            raise ValueError("each median of seconds must lie between its quartiles lower and upper")

    @property
    def probe(self) -> str | None:
        """What was drafted before each decision; ``None`` when the manifest does not say."""
        return self.manifest.get("probe")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything in the table."""
        return str(self._document()["sha256"])[:16]

    def at(self, bank: TopologyBank, lengths: npt.NDArray[np.integer]) -> StepCosts:
        """Price the trees of a bank at any context lengths.

        Linear between the measured contexts and constant below them. Above, the line through the last two
        goes on, but a cost never falls below that of the last.

        Args:
            bank: K trees; they are found by topology, whatever their names.
            lengths: Committed tokens when the step begins, ``(N,)``.

        Raises:
            ValueError: When a tree was not measured.
        """
        measured = {tree.fingerprint: k for k, tree in enumerate(self.trees)}
        missing = [tree.name for tree in bank if tree.fingerprint not in measured]
        if missing:
            raise ValueError(
                f"the cost table {self.name!r} has no {', '.join(missing)} of the bank {bank.name!r}; "
                "measure that bank with 'python -m train costs --bank ...', or estimate with the costs "
                "'analytic:<name or file of the table>'"
            )
        rows = [measured[tree.fingerprint] for tree in bank]
        return StepCosts(
            seconds=self._interpolate(self.seconds[rows], lengths),
            draft_seconds=self._interpolate(self.draft_seconds[rows], lengths),
            verify_seconds=self._interpolate(self.verify_seconds[rows], lengths),
            prefill_seconds=self._interpolate(self.prefill_seconds[None], lengths)[0],
        )

    def _interpolate(self, values: Seconds, lengths: npt.NDArray[np.integer]) -> Seconds:
        """``(K, C)`` at the measured contexts to ``(K, N)`` at ``lengths``."""
        inside = np.stack([np.interp(lengths, self.contexts, row) for row in values])
        if len(self.contexts) == 1:
            return inside
        slope = (values[:, -1] - values[:, -2]) / (self.contexts[-1] - self.contexts[-2])
        return inside + np.maximum(slope, 0)[:, None] * np.maximum(lengths - self.contexts[-1], 0)

    def save(self, path: str | Path) -> None:
        """Write the table as JSON, atomically; a line per tree, and a SHA-256 of the content."""
        entries = []
        for key, value in self._document().items():
            if key == "trees":
                text = "[\n" + ",\n".join(json.dumps(tree) for tree in value) + "\n]"
            else:
                text = json.dumps(value, indent=1 if key == "manifest" else None, allow_nan=False)
            entries.append(f"{json.dumps(key)}: {text}")
        write_text_atomically(path, "{\n" + ",\n".join(entries) + "\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """Read a table.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When it is damaged, of another format, or no cost table; the message says which.
        """
        try:
            document = read_json(path)
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']!r}, this version reads {FORMAT}")
            trees = document["trees"]
            table = cls(
                name=document["name"],
                trees=tuple(DraftTree.from_paths(tree["name"], tree["nodes"]) for tree in trees),
                contexts=np.array(document["contexts"], dtype=np.int64),
                **{key: np.array([t[key] for t in trees], dtype=np.float64) for key in _PER_TREE},
                prefill_seconds=np.array(document["prefill_seconds"], dtype=np.float64),
                manifest=document["manifest"],
            )
            # Stricter than comparing the hash alone: no unknown entry, no number in quotes.
            if _canonical(table._document()) != _canonical(document):
                raise ValueError("its content does not belong to its sha256")
            return table
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path} is damaged or is no cost table of this package ({error!r}); fetch it again, or "
                "measure one with 'python -m train costs'"
            ) from error

    def _document(self) -> dict[str, Any]:
        content = {
            "format": FORMAT,
            "name": self.name,
            "manifest": self.manifest,
            "contexts": self.contexts.tolist(),
            "prefill_seconds": self.prefill_seconds.tolist(),
            "trees": [
                {"name": tree.name, "nodes": tree.nodes}
                | {key: getattr(self, key)[k].tolist() for key in _PER_TREE}
                for k, tree in enumerate(self.trees)
            ],
        }
        return content | {"sha256": hashlib.sha256(_canonical(content).encode()).hexdigest()}


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
