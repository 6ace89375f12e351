"""The tree decoder: draft, verify, accept, commit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.acceptance import AcceptanceRule, GreedyRule, Verdict
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.draft import Draft, DraftPlan, draft_tree
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.trees import DraftTree


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        tokens: Token ids it added to the text: the root and the accepted drafts.
        accept_length: Accepted drafts a; ``len(tokens) == a + 1``.
        first_draft_right: Whether the first greedy draft stood; ``None`` when nothing was drafted.
        finish_reason: ``""``, ``"eos"``, ``"length"`` (token cap) or ``"context"`` (KV capacity).
        draft_seconds: Time of drafting, a probe before the decision included.
        verify_seconds: Time of the base model's pass.
        seconds: Time of the whole step.
    """

    tokens: list[int]
    accept_length: int
    first_draft_right: bool | None
    finish_reason: str
    draft_seconds: float
    verify_seconds: float
    seconds: float


class TreeDecoder:
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
        self.backbone, self.heads = backbone, heads
        self.eos_token_ids, self.max_nodes, self._clock = eos_token_ids, max_nodes, clock
        self._cache = backbone.new_cache(capacity)
        self._prefix_cache = None if heads.prefix is None else heads.prefix.new_cache(capacity)
        self._plans: dict[tuple[DraftTree, DraftTree | None], DraftPlan] = {}
        self._layouts: dict[DraftTree, tuple[Tensor, Tensor]] = {}
        self._rule: AcceptanceRule = GreedyRule()
        self._max_new_tokens = 0
        self._probe: Draft | None = None
        self._probe_seconds = 0.0
        self._draft: Draft | None = None
        self.tokens: list[int] = []
        self.finish_reason = "not started"

    @property
    def length(self) -> int:
        """Committed tokens, prompt included."""
        return self._cache.length

    @property
    def capacity(self) -> int:
        """KV rows of the session."""
        return self._cache.capacity

    def check_tree(self, tree: DraftTree) -> None:
        """Check that a tree can be drafted and verified.

        Raises:
            ValueError: When it is deeper than the heads, larger than ``max_nodes``, or has more siblings
                than the draft vocabulary has tokens.
        """
        self._check_draftable(tree)
        if len(tree) > self.max_nodes:
            raise ValueError(
                f"tree {tree.name!r} has {len(tree)} nodes; this decoder was made for {self.max_nodes}"
            )

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
    def start(
        self,
        prompt: Sequence[int],
        rule: AcceptanceRule | None = None,
        *,
        max_new_tokens: int = 256,
        seed: int = 0,
    ) -> float:
        """Forget the last text, prefill a prompt and choose the first root.

        Args:
            prompt: Token ids of one prompt, batch size 1.
            rule: Acceptance rule; greedy by default.
            max_new_tokens: Token cap.
            seed: Key of the rule's randomness.

        Returns:
            Seconds of the prefill.

        Raises:
            ValueError: When the prompt is empty, nested (a batch), has ids outside the vocabulary, or leaves
                no room for a step.
            FloatingPointError: When the logits behind it are not finite.
        """
        if any(not isinstance(token, int) for token in prompt):
            raise ValueError(
                "prompt must be a flat list of token ids: batch size 1 only, one decoder per text"
            )
        if not prompt or max_new_tokens < 1:
            raise ValueError(
                f"a text needs a prompt and room to grow; got {len(prompt)} tokens, cap {max_new_tokens}"
            )
        vocab_size = self.backbone.config.vocab_size
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise ValueError(
                f"prompt ids must be 0..{vocab_size - 1}, got {min(prompt)}..{max(prompt)}; use the "
                "tokenizer of this model"
            )
        if len(prompt) + 1 + self.max_nodes > self.capacity:
            raise ValueError(
                f"a prompt of {len(prompt)} tokens and a tree of {self.max_nodes} nodes do not fit into "
                f"{self.capacity} KV rows; shorten the prompt or raise the capacity"
            )
        begin = self._now()
        self._cache.clear()
        if self._prefix_cache is not None:
            self._prefix_cache.clear()
        self._rule = rule or GreedyRule()
        self._rule.start(seed)
        self._max_new_tokens, self.tokens, self.finish_reason = max_new_tokens, [], "not started"
        self._probe, self._draft, self._probe_seconds = None, None, 0.0
        hidden = self.backbone.forward(torch.tensor(prompt, device=self.backbone.device), self._cache)
        logits = self.backbone.logits(hidden[-1:])
        self._keep(hidden, list(range(len(prompt))), logits[0])
        self._check_root(0)
        self.root = int(self._rule.choose(logits, [len(prompt)])[0])
        self.finish_reason = ""
        return self._now() - begin

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
        tokens, hidden, logits = self.verify(draft)
        verified = self._now()
        verdict = self._rule.judge(tree, tokens, logits, self.length)
        probe_seconds = self._probe_seconds
        emitted = self.commit(verdict, tokens, hidden, logits)
        return Step(
            tokens=emitted,
            accept_length=len(emitted) - 1,
            first_draft_right=verdict.first_draft_right,
            finish_reason=self.finish_reason,
            draft_seconds=drafted - begin + probe_seconds,
            verify_seconds=verified - drafted,
            seconds=self._now() - begin + probe_seconds,
        )

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
        offsets, mask = self._layout(draft.tree)
        tokens = torch.cat((torch.tensor([self.root], device=self.backbone.device), draft.tokens))
        hidden = self.backbone.forward(tokens, self._cache, offsets + self.length, mask)
        return tokens, hidden, self.backbone.logits(hidden)

    def cut(self, verdict: Verdict, tokens: Tensor) -> tuple[list[int], str]:
        """The accepted tokens that really join the text: not past EOS, not past the cap.

        Args:
            verdict: What a rule made of a verified tree.
            tokens: Token of each row, root first.

        Returns:
            The tokens, and why the text ends with them: ``"eos"``, ``"length"`` or ``""``.
        """
        emitted = tokens[verdict.rows].tolist()
        room = self._max_new_tokens - len(self.tokens)
        for count, token in enumerate(emitted[:room], start=1):
            if token in self.eos_token_ids:
                return emitted[:count], "eos"
        return emitted[:room], "length" if len(emitted) >= room else ""

    @torch.inference_mode()
    def commit(self, verdict: Verdict, tokens: Tensor, hidden: Tensor, logits: Tensor) -> list[int]:
        """Commit what a rule accepted of the tree that was verified last, and choose the next root.

        Args:
            verdict: The accepted rows of that tree.
            tokens: Its tokens, as :meth:`verify` returned them.
            hidden: Its hidden states.
            logits: Its logits.

        Returns:
            The tokens that joined the text.

        Raises:
            FloatingPointError: When the logits behind them are not finite; a new text must be started.
        """
        emitted, reason = self.cut(verdict, tokens)
        rows = verdict.rows[: len(emitted)]
        self._keep(hidden, rows, logits[rows[-1]])
        self.root = verdict.next_tokens[len(rows) - 1]
        self._append(emitted, reason)
        self._probe, self._probe_seconds = None, 0.0
        return emitted

    def base_signals(self) -> tuple[float, float]:
        """Top-1 probability of the root's distribution, and its entropy divided by ln V."""
        top, entropy = certainty(self.root_logits)
        return float(top), float(entropy)

    def head_signals(self) -> tuple[list[float], list[float]]:
        """Confidence and entropy (÷ ln V′) of the last draft's greedy chain, as deep as it was drafted."""
        return ([], []) if self._draft is None else self._draft.chain()

    def probe_values(self) -> Tensor:
        """Path values of the nodes of the probe's tree, ``(nodes,)``.

        Raises:
            RuntimeError: When the next step was not probed.
        """
        if self._probe is None:
            raise RuntimeError("there is no probe; call probe(tree) before the decision")
        return self._probe.path_values()

    def _layout(self, tree: DraftTree) -> tuple[Tensor, Tensor]:
        """Position offset of each row and tree mask, on the device."""
        if tree not in self._layouts:
            self.check_tree(tree)
            offsets, mask = torch.from_numpy(tree.depths), torch.from_numpy(tree.attends)
            self._layouts[tree] = offsets.to(self.backbone.device), mask.to(self.backbone.device)
        return self._layouts[tree]

    def _draft_tree(self, tree: DraftTree, known: Draft | None) -> Draft:
        key = (tree, None if known is None else known.tree)
        if key not in self._plans:
            self._check_draftable(tree)
            self._plans[key] = DraftPlan(*key, self.backbone.device)
        root = torch.tensor([self.root], device=self.backbone.device)
        return draft_tree(self.heads, self._state, root, tree, self._plans[key], known)

    def _keep(self, hidden: Tensor, rows: list[int], root_logits: Tensor) -> None:
        self._cache.keep(rows)
        self.root_logits = root_logits
        kept = hidden[rows]
        if self.heads.prefix is not None:
            kept = self.heads.prefix(kept[None], self._prefix_cache)[0]
        self._state = kept[-1]

    def _append(self, emitted: list[int], reason: str) -> None:
        """Let committed tokens join the text, which ends when ``reason`` says so or the cache is full."""
        self._check_root(len(self.tokens) + len(emitted))
        self.tokens += emitted
        if not reason and self.length + 1 + self.max_nodes > self.capacity:
            reason = "context"
        self.finish_reason = reason

    def _check_root(self, tokens: int) -> None:
        """Check the logits behind so many tokens of the text; the maximum of a row with a NaN is NaN."""
        if not math.isfinite(float(self.root_logits.amax())):
            self.finish_reason = "logits not finite"
            raise FloatingPointError(
                f"the base model's logits behind {tokens} generated tokens are NaN or infinite; its weights "
                f"are damaged, or {self.backbone.dtype} is too narrow for them: try float32"
            )

    def _check_running(self) -> None:
        if self.finish_reason:
            raise RuntimeError(f"no text to continue ({self.finish_reason}); call start() first")

    def _now(self) -> float:
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize(self.backbone.device)
        return self._clock()
