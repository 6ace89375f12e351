"""Texts as training rows: every head on its true path, with the base's state that predicts the same token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.heads import DraftHeads
from train.texts import Text


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded on the right.

    Attributes:
        tokens: Token ids, ``(batch, length)``.
        hidden: Base hidden states, ``(batch, length, hidden_size)``.
        roots: True where the token is one of the reply, ``(batch, length)``.
    """

    tokens: Tensor
    hidden: Tensor
    roots: Tensor


def make_batch(texts: Sequence[Text], hidden: Sequence[Tensor], device: torch.device) -> Batch:
    """Pad texts and their hidden states into one batch."""
    length = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    states = torch.zeros(len(texts), length, hidden[0].shape[-1], dtype=hidden[0].dtype)
    roots = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        end = len(text.tokens)
        tokens[row, :end] = torch.tensor(text.tokens)
        states[row, :end] = hidden[row]
        roots[row, len(text.prompt) : end] = True
    return Batch(tokens.to(device), states.to(device), roots.to(device))


@dataclass(frozen=True)
class HeadRows:
    """Teacher-forced predictions of a batch; targets are the reply tokens, row-major.

    Attributes:
        outputs: Per depth, head outputs ``(rows_d, hidden_size)``.
        targets: Per depth, the target that each row predicts, ``(rows_d,)``, ascending.
        teacher: The base's hidden states that predict the targets, ``(targets, hidden_size)``.
        tokens: The targets, ``(targets,)``.
    """

    outputs: list[Tensor]
    targets: list[Tensor]
    teacher: Tensor
    tokens: Tensor


def head_rows(heads: DraftHeads, batch: Batch) -> HeadRows:
    """Run every head on its true path.

    Head d at position t reads the prefix state of t, the root t + 1 and the tokens up to t + d, and predicts
    token t + 1 + d; root and target both belong to the reply.
    """
    hidden = batch.hidden.to(next(heads.parameters()).dtype)
    states = hidden if heads.prefix is None else heads.prefix(hidden)
    embedded = heads.embed(batch.tokens) if heads.sequential else None
    is_target = batch.roots.clone()
    is_target[:, 0] = False
    number = is_target.flatten().cumsum(0).view_as(is_target) - 1
    outputs, targets = [], []
    for depth in range(1, heads.config.depth + 1):
        count = max(0, batch.tokens.shape[1] - 1 - depth)
        here = slice(1 + depth, 1 + depth + count)
        valid = batch.roots[:, 1 : 1 + count] & batch.roots[:, here]
        inputs = [states[:, :count][valid]]
        if embedded is not None:
            inputs += [embedded[:, 1 + j : 1 + j + count][valid] for j in range(depth)]
        outputs.append(heads.output(depth, torch.cat(inputs, dim=-1)))
        targets.append(number[:, here][valid])
    return HeadRows(outputs, targets, batch.hidden[:, :-1][is_target[:, 1:]], batch.tokens[is_target])
