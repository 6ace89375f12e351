"""Texts as training rows: every head on its true path, with the base's state that predicts the same token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.teacher_forcing import path_inputs, root_states, true_paths
from train.texts import Text


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded on the right.

    Attributes:
        tokens: Token ids, ``(batch, length)``.
        hidden: Base hidden states, ``(batch, length, hidden_size)``.
        roots: True at the tokens to learn, without gaps in a text, ``(batch, length)``.
        written: True where the token is one of the reply, ``(batch, length)``.
    """

    tokens: Tensor
    hidden: Tensor
    roots: Tensor
    written: Tensor


def make_batch(
    texts: Sequence[Text], hidden: Sequence[Tensor], device: torch.device, first_root: int | None = None
) -> Batch:
    """Pad texts and their hidden states into one batch.

    Args:
        texts: The texts.
        hidden: Their hidden states, each ``(tokens, hidden_size)``.
        device: Where the batch goes.
        first_root: Learn the prompts from this token on, at least 1; by default the replies alone.
    """
    tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
    states = pad_sequence(list(hidden), batch_first=True)
    roots = torch.zeros_like(tokens, dtype=torch.bool)
    written = torch.zeros_like(roots)
    for row, text in enumerate(texts):
        end = len(text.tokens)
        written[row, len(text.prompt) : end] = True
        start = len(text.prompt) if first_root is None else min(first_root, len(text.prompt))
        roots[row, start:end] = True
    return Batch(tokens.to(device), states.to(device), roots.to(device), written.to(device))


@dataclass(frozen=True)
class HeadRows:
    """Teacher-forced predictions of a batch; targets are the tokens to learn, row-major.

    Attributes:
        outputs: Per depth, head outputs ``(rows_d, hidden_size)``.
        targets: Per depth, the target that each row predicts, ``(rows_d,)``, ascending.
        teacher: The base's hidden states that predict the targets, ``(targets, hidden_size)``.
        tokens: The targets, ``(targets,)``; -1 where the base did not write them.
    """

    outputs: list[Tensor]
    targets: list[Tensor]
    teacher: Tensor
    tokens: Tensor


def head_rows(heads: DraftHeads, batch: Batch, *, dropout: float = 0.0, noise: float = 0.0) -> HeadRows:
    """Run every head on its true path.

    Head d at position t reads the prefix state of t, the root t + 1 and the tokens up to t + d, and predicts
    token t + 1 + d; root and target are both tokens to learn.

    Args:
        heads: Attached draft heads.
        batch: Texts.
        dropout: Share of the heads' inputs that is dropped.
        noise: Standard deviation of the noise on the hidden states, in units of their root mean square.
    """
    hidden = batch.hidden.to(next(heads.parameters()).dtype)
    if noise:
        hidden = hidden + noise * hidden.square().mean(-1, keepdim=True).sqrt() * torch.randn_like(hidden)
    states = root_states(heads, hidden, batch.roots)
    paths = true_paths(batch.tokens, batch.roots, heads.config.depth)
    outputs, targets = [], []
    for depth in range(1, heads.config.depth + 1):
        rows = (paths[:, depth] >= 0).nonzero()[:, 0]
        inputs = path_inputs(heads, states[rows], paths[rows, :depth])
        outputs.append(heads.output(depth, F.dropout(inputs, dropout) if dropout else inputs))
        targets.append(rows + depth)
    tokens = paths[:, 0].where(batch.written[batch.roots], -1)
    return HeadRows(outputs, targets, batch.hidden[:, :-1][batch.roots[:, 1:]], tokens)
