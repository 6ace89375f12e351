"""Staged drafts priced: all that the decisions of a staged scheduler would tell, looked up by position."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.isotonic import fit_curve
from entmtp_env.decoding.ranks import NO_TOKEN
from entmtp_env.decoding.stages import Stages
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.staged_drafts import StagedDrafts
from entmtp_env.staged_features import budget_features, depth_features


@dataclass(frozen=True)
class StagedTables:
    """What a staged scheduler meets at the R rows of a recording; read-only.

    Attributes:
        recording: The texts.
        drafts: The staged drafts at its rows.
        stages: Budgets and curves; its shape is that of the drafts.

    Raises:
        ValueError: When they do not fit together.
    """

    recording: Recording
    drafts: StagedDrafts
    stages: Stages

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        if len(self.drafts.tokens) != len(self.recording.tokens):
            raise ValueError("the drafts are not of the rows of the recording; take drafts.of(recording)")
        if self.drafts.shape != self.stages.shape:
            raise ValueError(
                f"the stages {self.stages.name!r} have {self.stages.shape}, the drafts {self.drafts.shape}; "
                "draft again for these stages"
            )

    @cached_property
    def values(self) -> npt.NDArray[np.float64]:
        """Path value of every node, the root's first, ``(R, N + 1)``."""
        values = np.ones((len(self.recording.tokens), self.stages.shape.nodes + 1))
        levels = zip(self._bounds, self.drafts.levels, strict=True)
        for depth, ((start, end), (raw, parents)) in enumerate(levels, start=1):
            above = np.take_along_axis(values, parents, axis=1)
            values[:, start:end] = self.stages.calibrated(depth, raw, above)
        return values

    @cached_property
    def accepts(self) -> npt.NDArray[np.uint8]:
        """Accepted drafts by row, drafted depths and budget, ``(R, D + 1, m)``; as if the text went on."""
        rows, depths = len(self.recording.tokens), self.stages.depth
        true = self.drafts.true_nodes(self.recording.ranks)
        accepts = np.zeros((rows, depths + 1, len(self.stages.budgets)), dtype=np.uint8)
        for drafted, (_, end) in enumerate(self._bounds, start=1):
            order = np.argsort(-self.values[:, 1:end], axis=1, kind="stable") + 1
            place = np.empty_like(order)
            np.put_along_axis(place, order - 1, np.arange(end - 1)[None], axis=1)
            for node in true[:, :drafted].T:
                own = np.where(node > 0, place[np.arange(rows), node - 1], self.stages.max_nodes)
                accepts[:, drafted] += own[:, None] < np.array(self.stages.budgets)
        return accepts

    @cached_property
    def of_depths(self) -> npt.NDArray[np.float32]:
        """:func:`~entmtp_env.staged_features.depth_features` of each depth, ``(R, D, 5)``."""
        return np.stack([depth_features(self.values[:, a:b]) for a, b in self._bounds], axis=1)

    @cached_property
    def of_budgets(self) -> npt.NDArray[np.float32]:
        """:func:`~entmtp_env.staged_features.budget_features` after each depth, ``(R, D, m - 1)``."""
        sums = []
        for _, end in self._bounds:
            descending = -np.sort(-self.values[:, 1:end], axis=1)
            sums.append(budget_features(self.stages, descending))
        return np.stack(sums, axis=1)

    @cached_property
    def observed(self) -> npt.NDArray[np.float32]:
        """The features of the stages by row and drafted depths, ``(R, D + 1, S)``; not clipped to bounds."""
        rows, depths, kinds = self.of_depths.shape
        end = 1 + depths * kinds
        observed = np.zeros((rows, depths + 1, end + self.of_budgets.shape[2]), dtype=np.float32)
        for drafted in range(1, depths + 1):
            observed[:, drafted, 0] = drafted / depths
            observed[:, drafted, 1 : 1 + drafted * kinds] = self.of_depths[:, :drafted].reshape(rows, -1)
            observed[:, drafted, end:] = self.of_budgets[:, drafted - 1]
        return observed

    @property
    def _bounds(self) -> list[tuple[int, int]]:
        """First node of each depth and of the next."""
        return list(itertools.pairwise(self.stages.shape.starts[1:]))

    def __deepcopy__(self, memo: dict[int, Any]) -> StagedTables:
        """Itself, since it is read-only: copies of an environment share it."""
        return self


def fit_stages(name: str, budgets: Sequence[int], texts: Sequence[tuple[Recording, StagedDrafts]]) -> Stages:
    """Stages whose path values are calibrated on recorded texts: an isotonic regression per depth.

    A node counts as true when it joins the text, so none does behind an EOS, whatever would follow there.
    Behind a text that was cut off by its cap, nobody knows, and the nodes do not count at all.

    Args:
        name: Name of the stages.
        budgets: Numbers of nodes that may be verified, rising from 0.
        texts: Recordings, each with drafts that contain its texts; all of one shape.

    Raises:
        ValueError: When drafts are not of a recording, their shapes differ, or all texts are too short.
    """
    shape = texts[0][1].shape
    plain = Stages(name, shape, tuple(budgets))
    claimed: list[list[npt.NDArray[Any]]] = [[] for _ in range(shape.depth)]
    true: list[list[npt.NDArray[Any]]] = [[] for _ in range(shape.depth)]
    for recording, drafts in texts:
        if drafts.shape != shape:
            raise ValueError(f"drafts of different shapes, {shape} and {drafts.shape}, have no common curves")
        own_drafts, lengths = drafts.of(recording), np.diff(recording.offsets)
        # Tokens of the text behind the root; -1 where a text has ended and there is no decision.
        left = np.repeat(recording.offsets[1:] - 2, lengths) - np.arange(len(recording.tokens))
        ended = np.repeat([text.finish_reason == "eos" for text in recording.texts], lengths)
        joins = np.arange(1, recording.depth + 1) <= np.where(ended, left, recording.depth)[:, None]
        ranks = np.where(joins, recording.ranks, NO_TOKEN)
        nodes = own_drafts.true_nodes(ranks)
        for depth, (values, _) in enumerate(own_drafts.levels):
            known = (left >= 0) & (ended | (ranks[:, depth] != NO_TOKEN))
            own = np.arange(values.shape[1]) + shape.starts[depth + 1] == nodes[:, depth, None]
            claimed[depth].append(values[known].ravel())
            true[depth].append(own[known].ravel())
    samples = [(np.concatenate(claimed[d]), np.concatenate(true[d])) for d in range(shape.depth)]
    if not all(len(values) for values, _ in samples):
        raise ValueError(f"no text is long enough to tell of depth {shape.depth}; record longer ones")
    return Stages(name, shape, plain.budgets, tuple(fit_curve(*sample) for sample in samples))
