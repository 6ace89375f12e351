"""Drafting in stages on the device, over fixed memory, without a word to the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.staged_draft import Stage, first_stage, next_stage
from entmtp_env.decoding.stages import Stages
from entmtp_env.decoding.static_buffers import StaticBuffers

UNKNOWN = -1.0
"""Path value of a node that is not drafted: below every other."""


class StaticCurve:
    """A :class:`~entmtp_env.decoding.isotonic.Curve` as tensor operations, equal to it in float64.

    Args:
        curve: The curve.
        device: Where values are.
    """

    def __init__(self, curve: Curve, device: torch.device) -> None:
        inputs, outputs = np.array(curve.inputs), np.array(curve.outputs)
        slopes = np.append(np.diff(outputs) / np.diff(inputs), 0.0)
        self._inputs, self._outputs, self._slopes = (
            torch.from_numpy(x.astype(np.float64)).to(device) for x in (inputs, outputs, slopes)
        )

    def __call__(self, values: Tensor) -> Tensor:
        """The map's value at each of ``values``, float64, in their shape."""
        values = values.clamp(self._inputs[0], self._inputs[-1])
        piece = torch.searchsorted(self._inputs, values, right=True) - 1
        return self._slopes[piece] * (values - self._inputs[piece]) + self._outputs[piece]


class StaticNodes:
    """What :class:`~entmtp_env.decoding.node_table.NodeTable` is on the host, with the drafting itself.

    Nodes have the numbers of :class:`~entmtp_env.decoding.draft_shape.DraftShape`. The number behind the last
    is no node: of it are the rows that pad a tree.

    Args:
        heads: Draft heads attached to the base model.
        stages: Widths, budgets and curves.
        buffers: What steps read and write.

    Attributes:
        stages: As given.
        none: The number that is no node, N + 1.
        depths: Depth of each number, ``(N + 2,)``; -1 of no node.
        tokens: Token of each number, ``(N + 2,)``; that of the root is with the buffers.
        values: Path value of each node, the root's first, float64 ``(N + 1,)``; :data:`UNKNOWN` where
            nothing is drafted.
        paths: Number at depth 0, 1, ... on the way to each, then its own again and again, ``(N + 2, D + 1)``.
        count: How many nodes are to be verified, ``(1,)``.
        drafted: The drafted depths as the heads gave them, for one root.
    """

    def __init__(self, heads: DraftHeads, stages: Stages, buffers: StaticBuffers) -> None:
        shape, device = stages.shape, buffers.tokens.device
        self.stages, self.none = stages, shape.nodes + 1
        self._heads, self._buffers = heads, buffers
        self._curves = [StaticCurve(curve, device) for curve in stages.curves]
        self._numbers = torch.arange(self.none + 1, device=device)
        self.depths = torch.from_numpy(np.append(shape.depths, -1)).to(device)
        self.tokens = torch.zeros_like(self._numbers)
        self.values = torch.full((self.none,), UNKNOWN, dtype=torch.float64, device=device)
        self.values[0] = 1.0
        self.paths = self._numbers[:, None].repeat(1, stages.depth + 1)
        self.paths[:-1, 0] = 0
        self.count = torch.zeros(1, dtype=torch.int64, device=device)
        self.drafted = [self._stage(depth) for depth in range(1, stages.depth + 1)]

    def _stage(self, depth: int) -> Stage:
        shape, heads = self.stages.shape, self._heads
        expanded, width = shape.expand[depth - 1], shape.widths[depth - 1]
        # What a Medusa head reads is the same at every node.
        rows = expanded if heads.sequential else 1
        state, whole = self._buffers.state, self.tokens
        return Stage(
            depth=depth,
            inputs=state.new_zeros(1, rows, heads.inputs(depth) * len(state)),
            expanded=whole.new_zeros(1, expanded),
            tokens=whole.new_zeros(1, width),
            values=state.new_zeros(1, width, dtype=torch.float32),
        )

    def draft(self, depth: int) -> None:
        """Draft one depth below ``buffers.root``; those before it must be drafted.

        Args:
            depth: 1, 2, ..., D.
        """
        b, shape, own = self._buffers, self.stages.shape, self.drafted[depth - 1]
        if depth == 1:
            # What is known of deeper nodes is of another root.
            self.values[1:].fill_(UNKNOWN)
            stage = first_stage(self._heads, shape, b.state[None], b.root)
        else:
            stage = next_stage(self._heads, shape, self.drafted[depth - 2])
        own.inputs.copy_(stage.inputs)
        own.expanded.copy_(stage.expanded)
        own.tokens.copy_(stage.tokens)
        own.values.copy_(stage.values)
        level = slice(*shape.starts[depth : depth + 2])
        places = stage.expanded[0][:, None].expand(-1, shape.children[depth - 1]).reshape(-1)
        parents = shape.starts[depth - 1] + places
        self.tokens[level].copy_(stage.tokens[0])
        self.paths[level, :depth].copy_(self.paths[parents, :depth])
        raw = stage.values[0].double()
        calibrated = self._curves[depth - 1](raw) if self._curves else raw
        self.values[level].copy_(calibrated.minimum(self.values[parents]))

    def order(self) -> Tensor:
        """Numbers of all nodes by falling path value, ``(N,)``; parents and lower siblings come first."""
        return self.values[1:].sort(descending=True, stable=True).indices + 1
