"""The staged decoder for CUDA: it drafts, builds trees and verifies by captured graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from entmtp_env.decoding.acceptance import Verdict
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.graphs import Launch
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.node_table import BuiltTree
from entmtp_env.decoding.session import Step
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.staged_draft import Stage
from entmtp_env.decoding.staged_rows import StagedRows
from entmtp_env.decoding.stages import Stages
from entmtp_env.decoding.static_accept import rule_key
from entmtp_env.decoding.static_choice import StagedChoice, StaticChoice
from entmtp_env.decoding.static_nodes import StaticNodes


class StagedGraphDecoder(StagedDecoder, GraphDecoder):
    """A :class:`StagedDecoder` whose steps are replays of graphs, the same steps in float32.

    A tree that is built at every step is data, so there are graphs for a few numbers of rows only: the tree
    is padded to the next of them with rows that see no row of it and are never accepted. A step ends with
    reading back what was accepted; how often the host waits before that depends on who decides:

    * The host, by :meth:`deepen` and :meth:`verify_best`: once for each drafted depth. Nothing is drafted in
      vain.
    * The device, by :meth:`step_by`: once, for the number of nodes, so that they are verified in as few rows
      as will do; never, when ``rows`` says in how many. But all depths are drafted.

    Waiting leaves the device idle for as long as a read-back and a launch take; a depth that a threshold
    would have spared takes reading its head's weights. So the host decides better where depths are often
    spared, the device where they seldom are. (Graphs that spare depths by themselves need CUDA's conditional
    nodes, which PyTorch does not capture.)

    Steps by a tree, a probe and rules of one's own are as in :class:`GraphDecoder`. What is verified is not
    looked at until :attr:`built` is asked for, which is valid until the next step.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        stages: What may be drafted and verified.
        row_buckets: Numbers of rows, the root's among them, to which trees are padded; that of the largest
            budget is always one.
        settings: Of :class:`GraphDecoder`, but ``max_nodes``.

    Raises:
        ValueError: When the heads cannot draft so deep or so wide.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: DraftHeads,
        stages: Stages,
        *,
        row_buckets: Sequence[int] = (8, 16, 32, 64),
        **settings: Any,
    ) -> None:
        super().__init__(backbone, heads, stages, **settings)
        self._nodes = StaticNodes(heads, stages, self._buffers)
        most = self.max_nodes + 1
        self._rows = {
            rows: StagedRows(backbone, heads, self._buffers, self._nodes, rows)
            for rows in sorted({most, *(rows for rows in row_buckets if 0 < rows < most)})
        }
        self._choices: dict[StagedChoice, StaticChoice] = {}
        self._verified: StagedRows | None = None

    def _started(self, prompt: Sequence[int], seed: int) -> None:
        super()._started(prompt, seed)
        for choice in self._choices.values():
            choice.start()

    @property
    def built(self) -> BuiltTree:
        """The tree that was verified last; this waits for the device."""
        return self._built if self._verified is None else self._verified.built()

    @torch.inference_mode()
    def deepen(self) -> float:
        """As :meth:`StagedDecoder.deepen`."""
        self._check_running()
        if self._is_static and self.table.depth < self.stages.depth:
            self._enter()
            # Captured before the clock starts.
            self._drafting(self.table.depth + 1)
        return super().deepen()

    @torch.inference_mode()
    def verify_best(self, nodes: int) -> Step:
        """As :meth:`StagedDecoder.verify_best`; building the tree counts as verification, as there."""
        if not self._is_static:
            self._verified = None
            return super().verify_best(nodes)
        self._check_best(nodes)
        self._enter()
        self._nodes.count.fill_(nodes)
        return self._verify_rows(self.rows_for(nodes))

    @torch.inference_mode()
    def step_by(self, choice: StagedChoice, depth: int | None = None, rows: int | None = None) -> Step:
        """Draft, let the device decide, and verify; what was drafted before is drafted again.

        Depths that do not clear their thresholds are drafted but not verified, so that the decisions are
        those of the same rule on the host. Thresholds of 0 use all that was drafted.

        Args:
            choice: The rule; its expectations begin with the text.
            depth: Depths to draft, by default all.
            rows: Verify in so many rows, see :meth:`rows_for`, hence no larger budget than ``rows - 1``. By
                default as few rows as will do, at the price of a read-back.

        Returns:
            The step, all its drafting included.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When the acceptance rule has no static form, the depth or rows are none of this
                decoder's, or the rule is of other stages or another capacity.
        """
        self._check_running()
        if not self._is_static:
            raise ValueError(
                f"steps under the rule {self._rule.name!r} are eager; decide by deepen() and verify_best()"
            )
        depth = self.stages.depth if depth is None else depth
        if not 1 <= depth <= self.stages.depth:
            raise ValueError(f"depth must be 1 to {self.stages.depth}, got {depth}")
        if rows is not None and rows not in self._rows:
            raise ValueError(f"rows must be one of {', '.join(map(str, self._rows))}, got {rows}")
        self._enter()
        if choice not in self._choices:
            self._choices[choice] = StaticChoice(choice, self._nodes, self._buffers, self.capacity)
        own = self._choices[choice]
        own.see(self.root_logits)
        most = self.max_nodes if rows is None else rows - 1
        decide = self._graphs.once(partial(own.decide, depth, most), own, depth, most)
        launches = [*(self._drafting(d) for d in range(1, depth + 1)), decide]
        if rows is not None:
            return self._verify_rows(rows, launches)
        begin = self._clock()
        _launch_all(launches)
        nodes = int(self._nodes.count)
        self._staged_seconds += self._clock() - begin
        return self._verify_rows(self.rows_for(nodes))

    def rows_for(self, nodes: int) -> int:
        """The number of rows in which a tree of so many nodes is verified.

        Args:
            nodes: At most the largest budget.
        """
        return next(rows for rows in self._rows if rows > nodes)

    @property
    def _is_static(self) -> bool:
        return rule_key(self._rule) is not None

    def _drafting(self, depth: int) -> Launch:
        return self._graphs.once(partial(self._nodes.draft, depth), "draft", depth)

    def _draft_stage(self) -> Stage:
        if not self._is_static:
            return super()._draft_stage()
        depth = self.table.depth + 1
        self._drafting(depth)()
        return self._nodes.drafted[depth - 1]

    def _verify_rows(self, rows: int, before: Sequence[Launch] = ()) -> Step:
        """Build the tree, verify, accept and commit.

        Args:
            rows: A number of rows that there are graphs for.
            before: What drafts and decides, where that was not done yet.
        """
        own = self._verified = self._rows[rows]
        graphs = self._graphs.pieces(own, self._rule, self.length)
        drafting, begin = self._staged_seconds, self._clock()
        if before:
            graphs = dataclasses.replace(graphs, draft=partial(_launch_all, [*before, graphs.draft]))
        step = self._replay(graphs, own.depth, begin)
        building = 0.0 if before else step.draft_seconds
        return dataclasses.replace(
            step,
            draft_seconds=drafting + step.draft_seconds - building,
            verify_seconds=building + step.verify_seconds,
            seconds=drafting + step.seconds,
        )

    def _join(self, verdict: Verdict, tokens: list[int], finite: list[int]) -> list[int]:
        emitted = super()._join(verdict, tokens, finite)
        self._clear_draft()
        return emitted


def _launch_all(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()
