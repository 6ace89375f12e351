"""What drafting in stages gives at every position of recorded texts; a file that goes with recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.replay.recording import IDENTITY, Recording
from entmtp_env.sealed_npz import load_sealed, save_sealed

FORMAT = 1

# Rounding may lift the exponential of a logarithm of 1 a little.
_ONE = 1 + 1e-5
_ARRAYS = ("offsets", "tokens", "values", "expanded")


@dataclass(frozen=True)
class StagedDrafts:
    """Drafts in stages at the R rows of recorded texts; their nodes are those of ``shape``, N in number.

    Attributes:
        identity: What made them: the entries :data:`~entmtp_env.replay.recording.IDENTITY` of the manifest of
            the recording.
        shape: How wide each depth is.
        prompt_ids: The texts.
        offsets: First row of each text, then R, int64 ``(texts + 1,)``.
        tokens: The roots, int32 ``(R,)``.
        values: Product of confidences of each node, float32 ``(R, N)``: exact, since nodes are ordered by it.
        expanded: Places of the expanded nodes within the depth before, depth by depth, uint16
            ``(R, sum(shape.expand))``.
    """

    identity: dict[str, Any]
    shape: DraftShape
    prompt_ids: tuple[str, ...]
    offsets: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    expanded: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: When they do not.
        """
        rows = len(self.tokens)
        expected: dict[str, tuple[tuple[int, ...], type[Any]]] = {
            "offsets": ((len(self.prompt_ids) + 1,), np.int64),
            "tokens": ((rows,), np.int32),
            "values": ((rows, self.shape.nodes), np.float32),
            "expanded": ((rows, sum(self.shape.expand)), np.uint16),
        }
        for name, (shape, dtype) in expected.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}")
        if self.offsets[0] != 0 or self.offsets[-1] != rows or (np.diff(self.offsets) < 1).any():
            raise ValueError("offsets must rise from 0 to the number of rows")
        if not ((self.values >= 0) & (self.values <= _ONE)).all():
            raise ValueError("values must be probabilities")
        widths = np.repeat((1, *self.shape.widths[:-1]), self.shape.expand)
        if (self.expanded >= widths).any():
            raise ValueError("expanded has places beyond the depth before")

    @property
    def levels(self) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """Values and parents of the nodes of each depth, both ``(R, widths[depth - 1])``."""
        values = np.split(self.values, np.cumsum(self.shape.widths)[:-1], axis=1)
        expanded = np.split(self.expanded, np.cumsum(self.shape.expand)[:-1], axis=1)
        parents = [self.shape.parents(depth, own) for depth, own in enumerate(expanded, start=1)]
        return list(zip(values, parents, strict=True))

    def true_nodes(self, ranks: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The drafted nodes that lie on the true path.

        Args:
            ranks: Of the recording, ``(R, D')``, D' at least the depth of the shape.

        Returns:
            Number of the node of each depth, -1 where none is true, ``(R, D)``.
        """
        true = np.zeros(len(ranks), dtype=np.int64)
        found = []
        for depth, (_, parents) in enumerate(self.levels, start=1):
            own = np.arange(parents.shape[1]) % self.shape.children[depth - 1] == ranks[:, depth - 1, None]
            own &= parents == true[:, None]
            true = np.where(own.any(axis=1), self.shape.starts[depth] + own.argmax(axis=1), -1)
            found.append(true)
        return np.stack(found, axis=1)

    def of(self, recording: Recording) -> StagedDrafts:
        """The drafts at the rows of a recording, which may have some of the texts only.

        Raises:
            ValueError: When they were made by another model, or a text is missing or another one.
        """
        for key, value in self.identity.items():
            if recording.manifest[key] != value:
                raise ValueError(
                    f"the staged drafts were made with {key} {value!r}, the recording with "
                    f"{recording.manifest[key]!r}; draft for this recording"
                )
        place = dict(zip(self.prompt_ids, zip(self.offsets, self.offsets[1:], strict=False), strict=True))
        ids = tuple(text.prompt_id for text in recording.texts)
        if missing := [prompt_id for prompt_id in ids if prompt_id not in place]:
            raise ValueError(
                f"there are no staged drafts of {len(missing)} recorded texts, such as {missing[0]!r}; draft "
                "for this recording"
            )
        rows = np.concatenate([np.arange(*place[prompt_id]) for prompt_id in ids])
        if not np.array_equal(self.tokens[rows], recording.tokens):
            raise ValueError(
                "the staged drafts are of other texts than the recorded; draft for this recording"
            )
        parts = {name: getattr(self, name)[rows] for name in _ARRAYS[1:]}
        return StagedDrafts(self.identity, self.shape, ids, recording.offsets, **parts)

    def save(self, path: str | Path) -> None:
        """Write one compressed, sealed ``.npz``, atomically."""
        header = {
            "format": FORMAT,
            "identity": self.identity,
            "shape": asdict(self.shape),
            "prompt_ids": self.prompt_ids,
        }
        save_sealed(path, "set of staged drafts", header, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, paths: str | Path | Sequence[str]) -> StagedDrafts:
        """Read staged drafts from a file, or from several as one.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When one is damaged, of another format, or something else, or they do not go together.
        """
        files = [paths] if isinstance(paths, str | Path) else list(paths)
        parts = [cls._load(path) for path in files]
        first = parts[0]
        if any((part.identity, part.shape) != (first.identity, first.shape) for part in parts):
            raise ValueError(f"{', '.join(map(str, files))}: made by different models or of different shapes")
        ids = tuple(prompt_id for part in parts for prompt_id in part.prompt_ids)
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS[1:]}
        return cls(first.identity, first.shape, ids, np.append(0, lengths.cumsum()), **arrays)

    @classmethod
    def _load(cls, path: str | Path) -> StagedDrafts:
        header, arrays = load_sealed(path, "set of staged drafts")
        if header.get("format") != FORMAT:
            raise ValueError(
                f"{path} has format {header.get('format')!r}, this version reads {FORMAT}; make it again"
            )
        try:
            shape = DraftShape(*(tuple(header["shape"][key]) for key in ("expand", "children")))
            made_by, prompt_ids = header["identity"], header["prompt_ids"]
            if not isinstance(made_by, dict) or made_by.keys() != set(IDENTITY):
                raise ValueError(f"the identity must have {', '.join(IDENTITY)}")
            if not isinstance(prompt_ids, list) or not all(isinstance(own, str) for own in prompt_ids):
                raise ValueError("prompt_ids must be a list of strings")
            return cls(made_by, shape, tuple(prompt_ids), **arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no valid staged drafts: {error}") from error


def identity(recording: Recording) -> dict[str, Any]:
    """What staged drafts and their recording have in common."""
    return {key: recording.manifest[key] for key in IDENTITY}
