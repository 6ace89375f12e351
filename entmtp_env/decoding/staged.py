"""The staged decoder: draft a depth, look at the path values, then draft deeper or verify the best nodes."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.node_table import BuiltTree, NodeTable
from entmtp_env.decoding.session import Step
from entmtp_env.decoding.staged_draft import Stage, first_stage, next_stage
from entmtp_env.decoding.stages import Stages
from entmtp_env.trees import DraftTree


class StagedDecoder(TreeDecoder):
    """A tree decoder whose steps are decisions: :meth:`deepen` while it pays, then :meth:`verify_best`.

    Nodes are chosen by path value, as EAGLE-2 does (arXiv 2406.16858), but for each number of drafted depths;
    the tree is built from arrays that are made once. Under a lossless rule the text is the autoregressive
    one, whatever is decided.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        stages: What may be drafted and verified.
        settings: Of :class:`TreeDecoder`, but ``max_nodes``: it is the largest budget.

    Raises:
        ValueError: When the heads cannot draft so deep or so wide.

    Example:
        >>> decoder.start([1, 42, 7], max_new_tokens=64)     # doctest: +SKIP
        >>> while not decoder.finish_reason:                 # doctest: +SKIP
        ...     decoder.deepen()
        ...     if max(decoder.table.level) > 0.5:
        ...         decoder.deepen()
        ...     decoder.verify_best(8)
    """

    def __init__(self, backbone: Backbone, heads: DraftHeads, stages: Stages, **settings: Any) -> None:
        config, shape = heads.config, stages.shape
        if shape.depth > config.depth:
            raise ValueError(
                f"the stages {stages.name!r} have depth {shape.depth}; there are only {config.depth} heads"
            )
        for depth, children in enumerate(shape.children, start=1):
            if children > config.vocab_size(depth):
                raise ValueError(
                    f"the stages {stages.name!r} ask for {children} children at depth {depth}, but only "
                    f"{config.vocab_size(depth)} tokens can be drafted there"
                )
        super().__init__(backbone, heads, max_nodes=stages.max_nodes, **settings)
        self.stages, self.table = stages, NodeTable(stages)
        self._built = self.table.best(0)
        self._stage: Stage | None = None
        self._tokens = torch.zeros(shape.nodes + 1, dtype=torch.int64, device=backbone.device)
        self._staged_seconds = 0.0

    @property
    def built(self) -> BuiltTree:
        """The tree that was verified last."""
        return self._built

    @property
    def drafting_seconds(self) -> float:
        """Seconds that drafting below the present root has taken so far."""
        return self._staged_seconds

    @torch.inference_mode()
    def deepen(self) -> float:
        """Draft one more depth; its path values are in :attr:`table` then.

        Returns:
            Seconds it took.

        Raises:
            RuntimeError: When the text has ended or none was started, or all depths are drafted.
            FloatingPointError: When the path values are not finite.
        """
        self._check_running()
        if self.table.depth == self.stages.depth:
            raise RuntimeError(f"all {self.stages.depth} depths are drafted; verify some nodes now")
        begin = self._now()
        stage = self._draft_stage()
        if self.backbone.device.type == "cpu":
            values, expanded = stage.values[0].tolist(), stage.expanded[0].tolist()
        else:
            # One transfer, hence one synchronisation; places are small enough for float32.
            width = stage.values.shape[1]
            both = torch.cat((stage.values[0], stage.expanded[0].float())).tolist()
            values, expanded = both[:width], [int(place) for place in both[width:]]
        self._check_heads(sum(values))
        self.table.add(values, expanded)
        self._stage = stage
        seconds = self._now() - begin
        self._staged_seconds += seconds
        return seconds

    @torch.inference_mode()
    def verify_best(self, nodes: int) -> Step:
        """Verify the drafted nodes with the highest path values, accept and commit; 0 decodes one token.

        Args:
            nodes: How many, at most those drafted and the largest budget.

        Returns:
            The step, all its drafting included.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When fewer nodes are drafted, or the decoder was made for fewer.
        """
        self._check_best(nodes)
        begin = self._now()
        drafting = self._staged_seconds
        tree = self.table.best(nodes)
        # The rules read nothing of a tree but the tables that this one has, too.
        as_tree = cast(DraftTree, tree)
        step = self._conclude(as_tree, self._verify_built(tree), begin, drafting)
        self._built = tree
        return step

    def _check_best(self, nodes: int) -> None:
        self._check_running()
        if nodes > self.max_nodes:
            raise ValueError(f"{nodes} nodes asked for; the largest budget is {self.max_nodes}")
        self.table.require(nodes)

    def _draft_stage(self) -> Stage:
        """Draft the next depth."""
        shape, last = self.stages.shape, self._stage
        if last is None:
            root = torch.tensor([self.root], device=self.backbone.device)
            stage = first_stage(self.heads, shape, self.state[None], root)
        else:
            stage = next_stage(self.heads, shape, last)
        start, end = shape.starts[stage.depth : stage.depth + 2]
        self._tokens[start:end] = stage.tokens[0]
        return stage

    def _verify_built(self, tree: BuiltTree) -> tuple[Tensor, Tensor, Tensor]:
        device = self.backbone.device
        self._tokens[0] = self.root
        nodes, depths, mask = (
            torch.from_numpy(x).to(device) for x in (tree.nodes, tree.depths, tree.attends)
        )
        tokens = self._tokens[nodes]
        hidden = self.backbone.forward(tokens, self._cache, depths + self.length, mask)
        return tokens, hidden, self.backbone.logits(hidden)

    def _keep(self, hidden: Tensor, rows: list[int], root_logits: Tensor) -> None:
        super()._keep(hidden, rows, root_logits)
        self._clear_draft()

    def _clear_draft(self) -> None:
        """There is another root now."""
        self.table.clear()
        self._stage, self._staged_seconds = None, 0.0
