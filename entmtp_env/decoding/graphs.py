"""Captured graphs of decode steps, by tree and KV bucket.

A CUDA graph launches the hundreds of kernels of a pass at once, but only for fixed shapes and addresses. So a
step reads the KV cache up to the end of a bucket of rows, with a mask, and there is a graph per tree and
bucket; a schedule that switches trees replays other graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from entmtp_env.decoding.acceptance import AcceptanceRule
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.static_accept import rule_key
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_step import StaticStep
from entmtp_env.trees import DraftTree

Launch = Callable[[], None]
Capture = Callable[[Launch], Launch]
"""Makes of a function on fixed buffers one that does the same at every call, such as a graph's replay."""


class CudaCapture:
    """Captures functions as CUDA graphs that share one memory pool.

    Graphs of a pool may overwrite each other's intermediate results. Nothing of a :class:`StaticStep`
    outlives a replay but its buffers, which lie outside the pool; so the graphs may be replayed in any order,
    one at a time.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # Memory of a pool is shared only among captures on the same stream.
        self._stream = torch.cuda.Stream(device)

    def __call__(self, function: Launch) -> Launch:
        """Run ``function`` once, so that libraries set themselves up, then capture it."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                function()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                function()
        return graph.replay


def call_directly(function: Launch) -> Launch:
    """What stands for a capture where there are no graphs: the function itself."""
    return function


@dataclass(frozen=True)
class StepGraphs:
    """The pieces of a step, to be launched in this order.

    Attributes:
        draft: Fills the tokens of the tree.
        verify: Runs the base model over them.
        accept: Accepts a path of the tree.
        commit: Keeps it; ``buffers.result`` is then worth reading.
        advance: Makes the state that was left the state of the next step.
    """

    draft: Launch
    verify: Launch
    accept: Launch
    commit: Launch
    advance: Launch


class GraphBank:
    """The graphs of all trees, captured at their first use.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        buffers: What all steps read and write.
        capacity: KV rows.
        bucket_rows: KV rows by which buckets differ; the last one ends with the capacity.
        capture: How to capture.

    Raises:
        ValueError: When ``bucket_rows`` is not positive.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: DraftHeads,
        buffers: StaticBuffers,
        *,
        capacity: int,
        bucket_rows: int,
        capture: Capture,
    ) -> None:
        if bucket_rows < 1:
            raise ValueError(f"bucket_rows must be at least 1, got {bucket_rows}")
        self._backbone, self._heads, self._buffers = backbone, heads, buffers
        self._capacity, self._bucket_rows, self._capture = capacity, bucket_rows, capture
        self._trees: dict[DraftTree, _TreeGraphs] = {}
        self._advance: Launch | None = None

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds so many KV rows.

        Raises:
            ValueError: When they exceed the capacity.
        """
        if rows > self._capacity:
            raise ValueError(
                f"{rows} KV rows exceed the capacity of {self._capacity}; end the text or raise the capacity"
            )
        return min(self._capacity, -(-rows // self._bucket_rows) * self._bucket_rows)

    def of(self, tree: DraftTree, rule: AcceptanceRule, length: int) -> StepGraphs:
        """The graphs of a step, captured now where this is their first use; the buffers' state is kept.

        Args:
            tree: The tree.
            rule: Acceptance rule; it must have a :func:`~entmtp_env.decoding.static_accept.rule_key`.
            length: Committed tokens when the step begins.

        Raises:
            ValueError: When the tree does not fit behind them.
        """
        bucket = self.bucket(length + 1 + len(tree))
        if self._advance is None:
            self._advance = self._capture(self._buffers.advance)
        own = self._trees.get(tree)
        if own is None:
            step = StaticStep(self._backbone, self._heads, self._buffers, tree)
            own = self._trees[tree] = _TreeGraphs(step, self._capture(step.draft))
        if bucket not in own.verify:
            own.verify[bucket] = self._capture(partial(own.step.verify, bucket))
            own.commit[bucket] = self._capture(partial(own.step.commit, bucket))
        key = rule_key(rule)
        if key not in own.accept:
            own.accept[key] = self._capture(partial(own.step.accept, rule))
        return StepGraphs(own.draft, own.verify[bucket], own.accept[key], own.commit[bucket], self._advance)


@dataclass(frozen=True)
class _TreeGraphs:
    step: StaticStep
    draft: Launch
    verify: dict[int, Launch] = field(default_factory=dict)
    commit: dict[int, Launch] = field(default_factory=dict)
    accept: dict[tuple[str | float, ...] | None, Launch] = field(default_factory=dict)
