"""A recording: what the draft heads would have made of every position of texts that are known.

Under ``greedy`` and ``sample`` the text does not depend on the trees, so a recording prices every schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.sealed_npz import load_sealed, save_sealed
from entmtp_env.trees import DraftTree

FORMAT = 1
IDENTITY = ("model_fingerprint", "heads_fingerprint", "acceptance", "dtype", "max_new_tokens")
"""Entries of the manifest that must be the same within a recording."""

_ORIGIN = ("acceptance", "model_fingerprint", "heads_fingerprint")
_LIMITS = {"prompt_tokens": 1 << 31, "seed": 1 << 64}
_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True)
class RecordedText:
    """One generated text.

    Attributes:
        prompt_id: The prompt, unique within a recording.
        prompt_tokens: Tokens of the prompt.
        seed: Key of the sampling noise.
        finish_reason: ``"eos"``, ``"length"`` or ``"context"``, as the text ended without a scheduler.
        text: The reply.
    """

    prompt_id: str
    prompt_tokens: int
    seed: int
    finish_reason: str
    text: str


@dataclass(frozen=True)
class Recording:
    """Texts with one row for each of their tokens as root, and a last one for the token that would follow.

    Row r of text i is position ``r - offsets[i]`` of its reply; R rows in all, D depths.

    Attributes:
        manifest: Names and fingerprints of what made it (:data:`IDENTITY` at least); ``approximate`` is true
            when the text depends on the schedule (``typical``), so that a replay is an approximation.
        texts: The texts.
        offsets: First row of each text, then R, int64 ``(texts + 1,)``; a text of n tokens has n + 1 rows.
        tokens: The roots, int32 ``(R,)``.
        ranks: Rank of the token d places behind the root among the drafts of head d on the true path, int32
            ``(R, D)``; see :class:`entmtp_env.decoding.ranks.TokenRanks`.
        base_top1: Top-1 probability of the distribution that the root is from, float32 ``(R,)``.
        base_entropy: Its entropy / ln V, float32 ``(R,)``.
        head_top1: Top-1 probability of each head along the greedy chain drafted at the root, ``(R, D)``.
        head_entropy: Entropy of the same distributions / ln V', float32 ``(R, D)``.
        root_shape: :func:`~entmtp_env.features.root_shape` of the root's text, bool ``(R, 5)``.
        candidates: The tree whose path values are kept; empty when none is.
        path_values: Its nodes' path values in the draft at each root, float16 ``(R, len(candidates))``. Which
            nodes are true follows from ``ranks``.
    """

    manifest: dict[str, Any]
    texts: tuple[RecordedText, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    ranks: npt.NDArray[np.int32]
    base_top1: npt.NDArray[np.float32]
    base_entropy: npt.NDArray[np.float32]
    head_top1: npt.NDArray[np.float32]
    head_entropy: npt.NDArray[np.float32]
    root_shape: npt.NDArray[np.bool_]
    candidates: DraftTree
    path_values: npt.NDArray[np.float16]

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: When they do not; the message names the part.
        """
        rows, depth = len(self.tokens), self.ranks.shape[-1]
        expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "offsets": ((len(self.texts) + 1,), np.dtype(np.int64)),
            "tokens": ((rows,), _INT),
            "ranks": ((rows, depth), _INT),
            "base_top1": ((rows,), _FLOAT),
            "base_entropy": ((rows,), _FLOAT),
            "head_top1": ((rows, depth), _FLOAT),
            "head_entropy": ((rows, depth), _FLOAT),
            "root_shape": ((rows, 5), np.dtype(np.bool_)),
            "path_values": ((rows, len(self.candidates)), np.dtype(np.float16)),
        }
        for name, (shape, dtype) in expected.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(
                    f"recording: {name} is {array.dtype} {array.shape}, expected {dtype} {shape}"
                )
            if dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"recording: {name} has values that are not finite")
        if self.offsets[0] != 0 or self.offsets[-1] != rows or (np.diff(self.offsets) < 2).any():
            raise ValueError("recording: offsets must rise from 0 to the number of rows, by 2 or more a text")
        if missing := sorted(set(IDENTITY) - set(self.manifest)):
            raise ValueError(f"recording: the manifest lacks {', '.join(missing)}")
        cap = self.manifest["max_new_tokens"]
        if not isinstance(cap, int) or not 1 <= cap < _LIMITS["prompt_tokens"]:
            raise ValueError(f"recording: max_new_tokens must be a whole number from 1, got {cap!r}")
        ids = [text.prompt_id for text in self.texts]
        if not ids or len(set(ids)) != len(ids):
            raise ValueError("recording: expected one or more texts, each with a prompt id of its own")

    @property
    def depth(self) -> int:
        """D, the number of heads."""
        return self.ranks.shape[1]

    @property
    def approximate(self) -> bool:
        """Whether replaying it is only an approximation, since the text depends on the schedule."""
        return bool(self.manifest.get("approximate", False))

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each reply, ``(texts,)``."""
        return np.diff(self.offsets) - 1

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the texts and of all that is recorded of them; what the manifest says is left out."""
        named = [astuple(text) for text in self.texts], self.candidates.nodes
        digest = hashlib.sha256(repr(named).encode())
        for name in _ARRAYS:
            digest.update(getattr(self, name).tobytes())
        return digest.hexdigest()[:16]

    def check_origin(self, manifest: Mapping[str, Any], there: str) -> None:
        """Check that it prices what decodes elsewhere: the same model, heads and acceptance rule.

        Args:
            manifest: That of the environment that decodes.
            there: What that is, for the message.

        Raises:
            ValueError: When it is another one.
        """
        for key in _ORIGIN:
            if manifest.get(key) != self.manifest[key]:
                raise ValueError(
                    f"{key} is {self.manifest[key]!r} in the recording and {manifest.get(key)!r} in {there}; "
                    "record the prompts with its model, heads and acceptance by 'python -m train record'"
                )

    def select(self, texts: Sequence[int]) -> Recording:
        """A recording of some of the texts, in the order given."""
        rows = np.concatenate([np.arange(self.offsets[i], self.offsets[i + 1]) for i in texts])
        parts = {name: getattr(self, name)[rows] for name in _ARRAYS if name != "offsets"}
        offsets = np.concatenate(([0], np.cumsum([self.lengths[i] + 1 for i in texts])))
        chosen = tuple(self.texts[i] for i in texts)
        return Recording(self.manifest, chosen, offsets.astype(np.int64), candidates=self.candidates, **parts)

    def save(self, path: str | Path) -> None:
        """Write one compressed, sealed ``.npz``, atomically."""
        header = {
            "format": FORMAT,
            "manifest": self.manifest,
            "texts": [asdict(text) for text in self.texts],
            "candidates": self.candidates.nodes,
        }
        save_sealed(path, "recording", header, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read a recording.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When it is damaged, of another format, or no recording; the message says which.
        """
        header, arrays = load_sealed(path, "recording")
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {header.get('format')!r}, this version reads {FORMAT}; record it again"
            )
        try:
            texts = tuple(_read_text(text) for text in header["texts"])
            if not isinstance(header["manifest"], dict):
                raise ValueError("the manifest is no JSON object")
            candidates = DraftTree.from_paths("candidates", header["candidates"])
            return cls(header["manifest"], texts, candidates=candidates, **arrays)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no valid recording: {error}") from error

    @classmethod
    def concatenate(cls, recordings: Sequence[Recording]) -> Recording:
        """One recording with the texts of all, such as several prompt sets to train on.

        Its manifest has what those of all agree on, and, where all tell them, the prompt sets and the
        consistency of all.

        Raises:
            ValueError: When they were made by different models, heads or rules, or share a prompt id.
        """
        first = recordings[0]
        for other in recordings[1:]:
            for key in IDENTITY:
                if other.manifest[key] != first.manifest[key]:
                    raise ValueError(
                        f"recordings differ in {key}: {first.manifest[key]!r} and {other.manifest[key]!r}; "
                        "record them with the same model, heads and settings"
                    )
            if other.candidates != first.candidates:
                raise ValueError("recordings keep the path values of different candidates")
        lengths = np.concatenate([recording.lengths for recording in recordings]) + 1
        parts = {
            name: np.concatenate([getattr(recording, name) for recording in recordings])
            for name in _ARRAYS
            if name != "offsets"
        }
        return cls(
            _common_manifest(recordings),
            tuple(text for recording in recordings for text in recording.texts),
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            candidates=first.candidates,
            **parts,
        )


def _common_manifest(recordings: Sequence[Recording]) -> dict[str, Any]:
    manifests = [recording.manifest for recording in recordings]
    common = {
        key: value
        for key, value in manifests[0].items()
        if all(key in other and other[key] == value for other in manifests)
    }
    told = set.intersection(*map(set, manifests)) - common.keys()
    if "prompts" in told:
        common["prompts"] = list(dict.fromkeys(name for own in manifests for name in own["prompts"]))
    if "consistency" in told:
        tokens = [int(recording.lengths.sum()) for recording in recordings]
        right = sum(n * own["consistency"] for n, own in zip(tokens, manifests, strict=True))
        common["consistency"] = right / sum(tokens)
    return common


def _read_text(document: dict[str, Any]) -> RecordedText:
    for field in fields(RecordedText):
        value = document[field.name]
        if type(value).__name__ != field.type or (
            field.type == "int" and not 0 <= value < _LIMITS[field.name]
        ):
            raise ValueError(f"{field.name} of a text is {value!r}, expected {field.type}")
    return RecordedText(**document)


_ARRAYS = (
    "offsets",
    "tokens",
    "ranks",
    "base_top1",
    "base_entropy",
    "head_top1",
    "head_entropy",
    "root_shape",
    "path_values",
)
