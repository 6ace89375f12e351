"""Captured graphs of decode steps, by what is verified and KV bucket.

A CUDA graph launches the hundreds of kernels of a pass at once, but only for fixed shapes and addresses. So a
step reads the KV cache up to the end of a bucket of rows, with a mask, and there is a graph per tree and
bucket; a schedule that switches trees replays other graphs. Trees that are built anew at every step share
the graphs of so many rows.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch

from entmtp_env.decoding.acceptance import AcceptanceRule
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.static_accept import rule_key
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_rows import StaticRows
from entmtp_env.decoding.static_step import StaticStep
from entmtp_env.trees import DraftTree

Launch = Callable[[], None]
Capture = Callable[[Launch], Launch]
"""Makes of a function on fixed buffers one that does the same at every call, such as a graph's replay."""


class CudaCapture:
    """Captures functions as CUDA graphs that share one memory pool.

    Graphs of a pool may overwrite each other's intermediate results. Nothing of a :class:`StaticRows`
    outlives a replay but its buffers, which lie outside the pool; so the graphs may be replayed in any order,
    one at a time.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _capture_stream(device)

    def __call__(self, function: Launch) -> Launch:
        """Run ``function`` once, so that libraries set themselves up, then capture it, and replay it once.

        A graph is uploaded by its first launch, which is not to fall into a timed step.
        """
        with torch.cuda.device(self._device), _uncollected():
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                function()
            torch.cuda.current_stream().wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Work of other threads on the device is none of a capture's business.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                function()
            graph.replay()
            torch.cuda.synchronize(self._device)
        return graph.replay


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all decoders: libraries keep a workspace for each stream, and a pool wants the same one."""
    return torch.cuda.Stream(device)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """A graph or an event that is freed during a capture breaks it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def call_directly(function: Launch) -> Launch:
    """What stands for a capture where there are no graphs: the function itself."""
    return function


@dataclass(frozen=True)
class StepGraphs:
    """The pieces of a step, to be launched in this order.

    Attributes:
        draft: Fills the tokens of the tree, and builds it where it is not known before.
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
    """The graphs of all steps, captured at their first use.

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
        self._trees: dict[DraftTree, StaticStep] = {}
        self._captured: dict[Hashable, Launch] = {}

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

    def once(self, function: Launch, *key: Hashable) -> Launch:
        """The graph of a function on fixed buffers, captured now where this is its first use.

        Args:
            function: What to capture; running it twice is running it once.
            key: What tells it apart from others.
        """
        if key not in self._captured:
            self._captured[key] = self._capture(function)
        return self._captured[key]

    def of(self, tree: DraftTree, rule: AcceptanceRule, length: int) -> StepGraphs:
        """The graphs of a tree's step, see :meth:`pieces`."""
        if tree not in self._trees:
            self._trees[tree] = StaticStep(self._backbone, self._heads, self._buffers, tree)
        return self.pieces(self._trees[tree], rule, length)

    def pieces(self, step: StaticRows, rule: AcceptanceRule, length: int) -> StepGraphs:
        """The graphs of a step, captured now where this is their first use; the buffers' state is kept.

        Args:
            step: The step.
            rule: Acceptance rule; it must have a :func:`~entmtp_env.decoding.static_accept.rule_key`.
            length: Committed tokens when the step begins.

        Raises:
            ValueError: When its rows do not fit behind them.
        """
        bucket = self.bucket(length + step.rows)
        return StepGraphs(
            advance=self.once(self._buffers.advance, "advance"),
            draft=self.once(step.draft, step, "draft"),
            verify=self.once(partial(step.verify, bucket), step, "verify", bucket),
            commit=self.once(partial(step.commit, bucket), step, "commit", bucket),
            accept=self.once(partial(step.accept, rule), step, "accept", rule_key(rule)),
        )
