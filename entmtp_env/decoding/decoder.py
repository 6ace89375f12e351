"""The tree decoder: draft, verify, accept, commit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.draft import Draft, DraftPlan, draft_tree
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.session import NOT_FINITE, Session, Step
from entmtp_env.trees import DraftTree


class TreeDecoder(Session):
    """Decodes one text at a time with a tree chosen anew at every step.

    After :meth:`start` and after every :meth:`step` the state is: ``length`` committed tokens, the root
    token chosen behind them but not yet in the KV cache, and the base's distribution it came from.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        capacity: KV rows of the session: prompt, text and the largest tree must fit.
        eos_token_ids: Tokens that end a text.
        max_nodes: Nodes of the largest tree that will be used; a text ends (``"context"``) when the next
            step with it could overflow the cache.
        clock: Seconds of a monotonic clock; tests inject their own.

    Example:
        >>> decoder.start([1, 42, 7], max_new_tokens=64)   # doctest: +SKIP
        >>> while not decoder.finish_reason:               # doctest: +SKIP
        ...     decoder.step(DraftTree.chain(3))
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: DraftHeads,
        *,
        capacity: int = 2048,
        eos_token_ids: frozenset[int] = frozenset(),
        max_nodes: int = 63,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(
            backbone, capacity=capacity, eos_token_ids=eos_token_ids, max_nodes=max_nodes, clock=clock
        )
        self.heads = heads
        self._prefix_cache = None if heads.prefix is None else heads.prefix.new_cache(capacity)
        # Hidden states of committed rows that the prefix layer has not read.
        self._unread: list[Tensor] = []
        self._plans: dict[tuple[DraftTree, DraftTree | None], DraftPlan] = {}
        self._probe: Draft | None = None
        self._probe_seconds = 0.0
        self._draft: Draft | None = None

    @property
    def state(self) -> Tensor:
        """What drafting starts from: the prefix state behind the last committed row, ``(hidden_size,)``.

        Without a prefix layer the base's hidden state. The layer reads committed rows here, when something
        is drafted: plain decoding steps do without it, and many rows cost it little more than one.
        """
        self._read()
        return self._state

    def _read(self) -> None:
        """Let the prefix layer read what was committed."""
        if self._unread:
            rows = torch.cat(self._unread)
            if self.heads.prefix is not None:
                rows = self.heads.prefix(rows[None], self._prefix_cache)[0]
            self._state = rows[-1]
            self._unread.clear()

    def check_tree(self, tree: DraftTree) -> None:
        """Check that a tree can be drafted and verified.

        Raises:
            ValueError: When it is deeper than the heads, larger than ``max_nodes``, or has more siblings
                than the draft vocabulary has tokens.
        """
        self._check_draftable(tree)
        super().check_tree(tree)

    def _check_draftable(self, tree: DraftTree) -> None:
        config = self.heads.config
        if tree.depth > config.depth:
            raise ValueError(
                f"tree {tree.name!r} has depth {tree.depth}, but there are {config.depth} draft heads"
            )
        for node in tree.nodes:
            if node[-1] >= config.vocab_size(len(node)):
                raise ValueError(
                    f"tree {tree.name!r} asks for {node[-1] + 1} children of a node, but only "
                    f"{config.vocab_size(len(node))} tokens can be drafted there"
                )

    @torch.inference_mode()
    def probe(self, tree: DraftTree) -> None:
        """Draft ``tree`` before the decision; the next step reuses it and counts its time.

        The tree may have any number of nodes, as the union of a bank has: only depth and ranks count.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When the heads cannot draft the tree.
        """
        self._check_running()
        begin = self._now()
        self._probe = self._draft_tree(tree, None)
        self._draft = self._probe
        self._probe_seconds = self._now() - begin

    @torch.inference_mode()
    def step(self, tree: DraftTree) -> Step:
        """Draft, verify, accept and commit one tree; the empty tree decodes one token.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When the heads cannot draft the tree.
            FloatingPointError: When the logits behind what was accepted are not finite.
        """
        self._check_running()
        begin = self._now()
        self._layout(tree)
        draft = self._draft_tree(tree, self._probe)
        if len(tree):
            self._draft = draft
        drafted = self._now()
        drafting = drafted - begin + self._probe_seconds
        return self._conclude(tree, self.verify(draft), drafted, drafting)

    @torch.inference_mode()
    def draft(self, tree: DraftTree) -> Draft:
        """Draft a tree below the root, with what was probed; nothing is committed.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When the heads cannot draft the tree.
        """
        self._check_running()
        return self._draft_tree(tree, self._probe)

    @torch.inference_mode()
    def verify(self, draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
        """One pass of the base over root and drafts; nothing is committed.

        Returns:
            Tokens ``(nodes + 1,)``, hidden states ``(nodes + 1, hidden_size)`` and logits
            ``(nodes + 1, vocab_size)``, root first.

        Raises:
            ValueError: When the tree is too large for this decoder.
        """
        return self._verify(draft.tree, draft.tokens)

    def head_signals(self) -> tuple[list[float], list[float]]:
        """Confidence and entropy (÷ ln V′) of the last draft's greedy chain, as deep as it was drafted.

        Raises:
            FloatingPointError: When they are not finite.
        """
        confidence, entropy = self._chain_signals()
        self._check_heads(sum(entropy))
        return confidence, entropy

    def _check_heads(self, value: float) -> None:
        """Check a number that is NaN when logits of the heads are."""
        if not math.isfinite(value):
            self.finish_reason = NOT_FINITE
            raise FloatingPointError(
                "the draft heads' logits are NaN or infinite; their weights are damaged, or "
                f"{self.backbone.weight_dtype} is too narrow for them: try float32"
            )

    def _chain_signals(self) -> tuple[list[float], list[float]]:
        return ([], []) if self._draft is None else self._draft.chain()

    def probe_values(self) -> Tensor:
        """Path values of the nodes of the probe's tree, ``(nodes,)``.

        Raises:
            RuntimeError: When the next step was not probed.
        """
        if self._probe is None:
            raise RuntimeError("there is no probe; call probe(tree) before the decision")
        return self._probe.path_values()

    def _draft_tree(self, tree: DraftTree, known: Draft | None) -> Draft:
        key = (tree, None if known is None else known.tree)
        if key not in self._plans:
            self._check_draftable(tree)
            self._plans[key] = DraftPlan(*key, self.backbone.device)
        if not len(tree):
            return Draft.of_nothing(tree, self.backbone.device)
        root = torch.tensor([self.root], device=self.backbone.device)
        return draft_tree(self.heads, self.state, root, tree, self._plans[key], known)

    def _forget(self) -> None:
        super()._forget()
        if self._prefix_cache is not None:
            self._prefix_cache.clear(erase=self.finish_reason == NOT_FINITE)
        self._draft = None
        self._unread.clear()

    def _keep(self, hidden: Tensor, rows: list[int], root_logits: Tensor) -> None:
        super()._keep(hidden, rows, root_logits)
        self._unread.append(hidden[rows])
        if self.length == len(rows):
            # A prompt is read where it is prefilled, not in the first step.
            self._read()
        # There is another root now.
        self._probe, self._probe_seconds = None, 0.0
