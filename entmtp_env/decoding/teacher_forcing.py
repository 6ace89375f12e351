"""Draft heads on texts that exist already: every reply token as root, the tokens behind it as true path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from entmtp_env.decoding.heads import DraftHeads


def like_lengths(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Texts for one pass each: of like length, so that little is padding, the longest first.

    Args:
        lengths: Tokens of each text.
        tokens: Tokens of a pass, padding included; a longer text has one of its own.

    Yields:
        Numbers of the texts of a pass.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while order:
        count = max(1, tokens // lengths[order[0]])
        yield order[:count]
        del order[:count]


def root_states(heads: DraftHeads, hidden: Tensor, roots: Tensor) -> Tensor:
    """What the heads read of the base at each root: the prefix state of the token before it.

    Args:
        heads: Attached draft heads.
        hidden: Base hidden states of whole texts, ``(batch, length, hidden_size)``.
        roots: True at the tokens of the replies, ``(batch, length)``; never at a text's first token.

    Returns:
        Shape ``(roots, hidden_size)``, row-major.
    """
    states = hidden if heads.prefix is None else heads.prefix(hidden)
    return states[:, :-1][roots[:, 1:]]


def true_paths(tokens: Tensor, roots: Tensor, depth: int) -> Tensor:
    """Each root and the ``depth`` tokens that follow it.

    Args:
        tokens: Token ids, ``(batch, length)``.
        roots: True at the tokens of the replies, without gaps, ``(batch, length)``.
        depth: How many tokens behind the root.

    Returns:
        Token ids ``(roots, depth + 1)``, row-major; -1 past the end of the reply.
    """
    reply = F.pad(tokens.where(roots, -1), (0, depth), value=-1)
    return reply.unfold(1, depth + 1, 1)[roots]


def path_inputs(heads: DraftHeads, states: Tensor, paths: Tensor) -> Tensor:
    """Inputs of head d below paths of d tokens, roots included.

    Args:
        heads: Attached draft heads.
        states: Of :func:`root_states`, ``(rows, hidden_size)``.
        paths: Token ids, ``(rows, d)``.

    Returns:
        Shape ``(rows, heads.inputs(d) * hidden_size)``.
    """
    if not heads.sequential:
        return states
    return torch.cat((states, heads.embed(paths).flatten(1)), dim=-1)
