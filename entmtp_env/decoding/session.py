"""A text that a base model writes: prefill, verification, acceptance and commit, whoever drafts."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from entmtp_env.decoding.acceptance import AcceptanceRule, GreedyRule, Verdict
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.certainty import certainty_of
from entmtp_env.trees import DraftTree

NOT_FINITE = "logits not finite"
"""Why a text ended with a ``FloatingPointError``."""


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        tokens: Token ids it added to the text: the root and the accepted drafts.
        accept_length: Accepted drafts a; ``len(tokens) == a + 1``.
        first_draft_right: Whether the first greedy draft stood; ``None`` when nothing was drafted.
        finish_reason: ``""``, ``"eos"``, ``"length"`` (token cap) or ``"context"`` (KV capacity).
        draft_seconds: Time of drafting, a probe before the decision included; also of the prefix layer, but
            where steps are captured.
        verify_seconds: Time of the base model's pass.
        accept_seconds: Time of the acceptance rule.
        commit_seconds: Time of keeping what was accepted: KV rows and next root, in captured steps the prefix
            layer.
        seconds: Time of the whole step.
    """

    tokens: list[int]
    accept_length: int
    first_draft_right: bool | None
    finish_reason: str
    draft_seconds: float
    verify_seconds: float
    accept_seconds: float
    commit_seconds: float
    seconds: float


class Session:
    """One text at a time, without anything that drafts: the base of the decoders.

    After :meth:`start` and after every step the state is: ``length`` committed tokens, the root token chosen
    behind them but not yet in the KV cache, and the base's distribution it came from.

    Args:
        backbone: The base model.
        capacity: KV rows of the session: prompt, text and the largest tree must fit.
        eos_token_ids: Tokens that end a text.
        max_nodes: Nodes of the largest tree that will be used; a text ends (``"context"``) when the next
            step with it could overflow the cache.
        clock: Seconds of a monotonic clock; tests inject their own.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        capacity: int = 2048,
        eos_token_ids: frozenset[int] = frozenset(),
        max_nodes: int = 63,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.backbone = backbone
        self.eos_token_ids, self.max_nodes, self._clock = eos_token_ids, max_nodes, clock
        self._cache = backbone.new_cache(capacity)
        self._layouts: dict[DraftTree, tuple[Tensor, Tensor]] = {}
        self._rule: AcceptanceRule = GreedyRule()
        self._max_new_tokens = 0
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
        """Check that a tree can be verified.

        Raises:
            ValueError: When it is larger than ``max_nodes``.
        """
        if len(tree) > self.max_nodes:
            raise ValueError(
                f"tree {tree.name!r} has {len(tree)} nodes; this decoder was made for {self.max_nodes}"
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
        try:
            prompt = [operator.index(token) for token in prompt]
        except TypeError as error:
            raise ValueError(
                "prompt must be a flat list of token ids: batch size 1 only, one decoder per text"
            ) from error
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
        self._forget()
        self._rule = rule or GreedyRule()
        self._rule.start(seed)
        self._max_new_tokens, self.tokens, self.finish_reason = max_new_tokens, [], "not started"
        hidden = self.backbone.forward(torch.tensor(prompt, device=self.backbone.device), self._cache)
        logits = self.backbone.logits(hidden[-1:])
        self._keep(hidden, list(range(len(prompt))), logits[0])
        self._check_root(0)
        self.root = int(self._rule.choose(logits, [len(prompt)])[0])
        self.finish_reason = ""
        seconds = self._now() - begin
        self._started(prompt, seed)
        return seconds

    def _started(self, prompt: Sequence[int], seed: int) -> None:
        """Get ready for a text; the arguments are those of :meth:`start`."""

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
        return emitted

    def base_signals(self) -> tuple[float, float]:
        """Top-1 probability of the root's distribution, and its entropy divided by ln V."""
        return certainty_of(self.root_logits)

    def _verify(self, tree: DraftTree, drafts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One pass of the base over root and drafts ``(nodes,)``: tokens, hidden states and logits."""
        offsets, mask = self._layout(tree)
        tokens = torch.cat((torch.tensor([self.root], device=self.backbone.device), drafts))
        hidden = self.backbone.forward(tokens, self._cache, offsets + self.length, mask)
        return tokens, hidden, self.backbone.logits(hidden)

    def _conclude(
        self, tree: DraftTree, verified: tuple[Tensor, Tensor, Tensor], begin: float, draft_seconds: float
    ) -> Step:
        """Accept and commit what has been verified since ``begin``."""
        tokens, hidden, logits = verified
        times = [begin, self._now()]
        verdict = self._rule.judge(tree, tokens, logits, self.length)
        times.append(self._now())
        emitted = self.commit(verdict, tokens, hidden, logits)
        times.append(self._now())
        verify, accept, commit = (after - before for before, after in pairwise(times))
        return Step(
            tokens=emitted,
            accept_length=len(emitted) - 1,
            first_draft_right=verdict.first_draft_right,
            finish_reason=self.finish_reason,
            draft_seconds=draft_seconds,
            verify_seconds=verify,
            accept_seconds=accept,
            commit_seconds=commit,
            seconds=times[-1] - begin + draft_seconds,
        )

    def _forget(self) -> None:
        """Drop what belongs to the last text."""
        self._cache.clear(erase=self.finish_reason == NOT_FINITE)

    def _layout(self, tree: DraftTree) -> tuple[Tensor, Tensor]:
        """Position offset of each row and tree mask, on the device."""
        if tree not in self._layouts:
            self.check_tree(tree)
            offsets, mask = torch.from_numpy(tree.depths), torch.from_numpy(tree.attends)
            self._layouts[tree] = offsets.to(self.backbone.device), mask.to(self.backbone.device)
        return self._layouts[tree]

    def _keep(self, hidden: Tensor, rows: list[int], root_logits: Tensor) -> None:
        """Keep rows of the last pass, behind which the next root is chosen by ``root_logits``."""
        self._cache.keep(rows)
        self.root_logits = root_logits

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
            self.finish_reason = NOT_FINITE
            raise FloatingPointError(
                f"the base model's logits behind {tokens} generated tokens are NaN or infinite; its weights "
                f"are damaged, or {self.backbone.weight_dtype} is too narrow for them: try float32"
            )

    def _check_running(self) -> None:
        if self.finish_reason:
            raise RuntimeError(f"no text to continue ({self.finish_reason}); call start() first")

    def _now(self) -> float:
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize(self.backbone.device)
        return self._clock()
