"""The tree decoder for CUDA: its steps are replays of captured graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from entmtp_env.decoding.acceptance import SampleRule, Verdict
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.decoding.graphs import Capture, CudaCapture, GraphBank, StepGraphs, call_directly
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.session import Step
from entmtp_env.decoding.static_accept import rule_key
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.trees import DraftTree


class GraphDecoder(TreeDecoder):
    """A :class:`TreeDecoder` whose steps run on the device from draft to commit and are read back once.

    Both work on the same KV cache, so a step that has no static form (behind a probe, or under a rule of
    one's own) is an eager one. Graphs are captured at the first use of a tree and KV bucket, before the clock
    of that step starts. ``root_logits`` is valid until the next step.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        bucket_rows: KV rows by which buckets differ.
        capture: How to capture; CUDA graphs on a CUDA device, elsewhere direct calls.
        settings: Of :class:`TreeDecoder`.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: DraftHeads,
        *,
        bucket_rows: int = 256,
        capture: Capture | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(backbone, heads, **settings)
        on_cuda = backbone.device.type == "cuda"
        self._buffers = StaticBuffers(backbone, heads, self._cache, self._prefix_cache, self.max_nodes)
        self._graphs = GraphBank(
            backbone,
            heads,
            self._buffers,
            capacity=self.capacity,
            bucket_rows=bucket_rows,
            capture=capture or (CudaCapture(backbone.device) if on_cuda else call_directly),
        )
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(5)] if on_cuda else []
        self._checked: set[DraftTree] = set()
        self._chain = 0  # how deep the last static step drafted the greedy chain
        self._root_is_finite = False

    def _started(self, prompt: Sequence[int], seed: int) -> None:
        super()._started(prompt, seed)
        self._chain = 0
        self._buffers.noise.start(seed)

    @torch.inference_mode()
    def step(self, tree: DraftTree) -> Step:
        """As :meth:`TreeDecoder.step`; the seconds of its four parts are the device's."""
        self._check_running()
        if self._probe is not None or rule_key(self._rule) is None:
            return super().step(tree)
        if tree not in self._checked:
            self.check_tree(tree)
            self._checked.add(tree)
        self._enter()
        graphs = self._graphs.of(tree, self._rule, self.length)
        step = self._replay(graphs, tree.depth, self._clock())
        if len(tree):
            self._draft, self._chain = None, tree.greedy_depth
        return step

    def _chain_signals(self) -> tuple[list[float], list[float]]:
        if self._draft is not None or not self._chain:
            return super()._chain_signals()
        confidence, entropy = self._buffers.signals[:, : self._chain].tolist()
        return confidence, entropy

    def _keep(self, hidden: Tensor, rows: list[int], root_logits: Tensor) -> None:
        super()._keep(hidden, rows, root_logits)
        # As captured steps do, in their commit; later it would be before the clock of a step starts.
        self._read()

    def _enter(self) -> None:
        """Show the device a state that a prefill or an eager step left."""
        b = self._buffers
        if self._state is not b.state:
            b.load(self.length, self.root, self._state)
            self._state = b.state

    def _replay(self, graphs: StepGraphs, depth: int, begin: float) -> Step:
        """Launch a step from draft to commit and read it back.

        Args:
            graphs: Its pieces.
            depth: Depth of the deepest tree that it can verify.
            begin: When it began, by the clock.
        """
        b = self._buffers
        if isinstance(self._rule, SampleRule):
            b.noise.fill(self.length + 1, self.length + 1 + depth)
        marks = [self._mark(0)]
        for index, launch in enumerate((graphs.draft, graphs.verify, graphs.accept, graphs.commit), start=1):
            launch()
            marks.append(self._mark(index))
        graphs.advance()
        count, first, *rows = b.result.tolist()
        tokens, following, finite = (rows[kind * b.path_rows :][:count] for kind in range(3))
        verdict = Verdict(list(range(count)), following, None if first < 0 else bool(first))
        emitted = self._join(verdict, tokens, finite)
        seconds = self._clock() - begin
        return Step(
            tokens=emitted,
            accept_length=len(emitted) - 1,
            first_draft_right=verdict.first_draft_right,
            finish_reason=self.finish_reason,
            draft_seconds=self._between(marks, 0),
            verify_seconds=self._between(marks, 1),
            accept_seconds=self._between(marks, 2),
            commit_seconds=self._between(marks, 3),
            seconds=seconds,
        )

    def _join(self, verdict: Verdict, tokens: list[int], finite: list[int]) -> list[int]:
        """Take over what the device has committed already; a text that ends here uses none of the rest."""
        emitted, reason = self.cut(verdict, torch.tensor(tokens))
        kept = len(emitted)
        for cache in (self._cache, self._prefix_cache):
            if cache is not None:
                cache.length += kept
        self.root, self.root_logits = verdict.next_tokens[kept - 1], self._buffers.path_logits[kept - 1]
        self._root_is_finite = bool(finite[kept - 1])
        self._append(emitted, reason)
        self._root_is_finite = False
        return emitted

    def _check_root(self, tokens: int) -> None:
        # What was read back with the step need not be asked of the device again.
        if not self._root_is_finite:
            super()._check_root(tokens)

    def _mark(self, index: int) -> float:
        """A point in the device's work; on a CPU, which has done all before it, the time."""
        if not self._events:
            return self._clock()
        self._events[index].record(torch.cuda.current_stream(self.backbone.device))
        return 0.0

    def _between(self, marks: list[float], index: int) -> float:
        """Seconds from one mark to the next."""
        if not self._events:
            return marks[index + 1] - marks[index]
        return self._events[index].elapsed_time(self._events[index + 1]) / 1e3
