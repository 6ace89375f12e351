"""A softmax over a sample of the draft vocabulary: a training step need not multiply all of the LM head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SoftmaxTokens:
    """The draft tokens that a step's softmax is over.

    Attributes:
        ids: Draft indices, ``(tokens,)``.
        log_weight: Logarithm of how many tokens each stands for, to be added to its logits, ``(tokens,)``.
        labels: The labels as positions in ``ids``; -1 stays.
    """

    ids: Tensor
    log_weight: Tensor
    labels: Tensor


def sample_tokens(labels: Tensor, draft_vocab_size: int, count: int) -> SoftmaxTokens:
    """Choose a step's tokens: its labels, the most frequent ones, and others at random.

    Half of ``count`` are the most frequent tokens. The rest is drawn uniformly, without repetition, from
    those that remain, and weighted by their number over that of the drawn, so that the softmax denominator
    is right in expectation (importance sampling: Bengio & Senécal 2008; Jean et al., arXiv 1412.2007).

    Args:
        labels: Draft indices, -1 where there is none, ``(rows,)``; a lower index is a more frequent token.
        draft_vocab_size: Tokens in all.
        count: About how many to choose; the labels come on top.
    """
    device = labels.device
    certain = torch.zeros(draft_vocab_size, dtype=torch.bool, device=device)
    certain[: count // 2] = True
    certain[labels[labels >= 0]] = True
    others = (~certain).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), device=device)[: max(1, count - count // 2)]]
    ids = torch.cat((certain.nonzero()[:, 0], drawn))
    log_weight = torch.zeros(len(ids), device=device)
    if len(drawn):
        log_weight[-len(drawn) :] = math.log(len(others) / len(drawn))
    place = torch.full((draft_vocab_size,), -1, device=device)
    place[ids] = torch.arange(len(ids), device=device)
    return SoftmaxTokens(ids, log_weight, torch.where(labels >= 0, place[labels], -1))
