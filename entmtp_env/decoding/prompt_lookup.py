"""Prompt-lookup decoding (Saxena, 2023): drafts are what followed when the last tokens occurred before."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.session import Session, Step
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree


def look_up(context: npt.NDArray[np.int64], tokens: int, max_ngram: int) -> npt.NDArray[np.int64]:
    """The continuation of the most recent earlier occurrence of the last n tokens, for the largest such n.

    Where it reaches the end of the context it goes on in itself, for there the text is periodic.

    Args:
        context: Token ids, ``(length,)``, at least one.
        tokens: How many to draft.
        max_ngram: Largest n, at least 1.

    Returns:
        Token ids, ``(tokens,)``, or ``(0,)`` when the last token never occurred before.
    """
    length = len(context)
    # Where earlier occurrences of the last n tokens end: those of n + 1 are among those of n.
    ends = np.flatnonzero(context[:-1] == context[-1])
    for n in range(1, max_ngram):
        longer = ends[ends >= n]
        longer = longer[context[longer - n] == context[max(length - 1 - n, 0)]]
        if not len(longer):
            break
        ends = longer
    if not len(ends):
        return context[:0]
    start = ends[-1] + 1
    return context[start + np.arange(tokens) % (length - start)]


class PromptLookupDecoder(Session):
    """Drafts chains from prompt and text, and verifies them in one pass; it has no heads to pay for.

    Under a lossless rule the text is the autoregressive one.

    Args:
        backbone: The base model.
        max_ngram: Longest run of last tokens that is looked up.
        capacity: KV rows of the session: prompt, text and the longest chain must fit.
        eos_token_ids: Tokens that end a text.
        max_nodes: Tokens of the longest chain.
        clock: Seconds of a monotonic clock; tests inject their own.

    Raises:
        ValueError: When ``max_ngram`` is not positive.

    Example:
        >>> decoder.start([1, 42, 7], max_new_tokens=64)   # doctest: +SKIP
        >>> while not decoder.finish_reason:               # doctest: +SKIP
        ...     decoder.step(DraftTree.chain(10))
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        max_ngram: int = 3,
        capacity: int = 2048,
        eos_token_ids: frozenset[int] = frozenset(),
        max_nodes: int = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if max_ngram < 1:
            raise ValueError(f"max_ngram must be at least 1, got {max_ngram}")
        super().__init__(
            backbone, capacity=capacity, eos_token_ids=eos_token_ids, max_nodes=max_nodes, clock=clock
        )
        self.max_ngram = max_ngram
        self._context = np.zeros(capacity, dtype=np.int64)

    def check_tree(self, tree: DraftTree) -> None:
        """Check that a tree is a chain that can be verified.

        Raises:
            ValueError: When it is none, or longer than ``max_nodes``.
        """
        if tree.depth != len(tree):
            raise ValueError(f"tree {tree.name!r} is no chain, and a looked-up draft is one")
        super().check_tree(tree)

    def _started(self, prompt: Sequence[int], seed: int) -> None:
        super()._started(prompt, seed)
        self._context[: len(prompt)] = prompt

    @torch.inference_mode()
    def step(self, tree: DraftTree) -> Step:
        """Look up, verify, accept and commit as many tokens as a chain has; one is decoded if there are none.

        Raises:
            RuntimeError: When the text has ended or none was started.
            ValueError: When the tree is no chain, or too long for this decoder.
            FloatingPointError: When the logits behind what was accepted are not finite.
        """
        self._check_running()
        begin = self._now()
        self._layout(tree)
        self._context[self.length] = self.root
        found = look_up(self._context[: self.length + 1], len(tree), self.max_ngram)
        chain = tree if len(found) else AUTOREGRESSIVE
        drafts = torch.from_numpy(found).to(self.backbone.device)
        drafted = self._now()
        return self._conclude(chain, self._verify(chain, drafts), drafted, drafted - begin)

    def head_signals(self) -> tuple[list[float], list[float]]:
        """As :meth:`~entmtp_env.decoding.decoder.TreeDecoder.head_signals`: there are none."""
        return [], []

    def _append(self, emitted: list[int], reason: str) -> None:
        self._context[self.length - len(emitted) : self.length] = emitted
        super()._append(emitted, reason)
