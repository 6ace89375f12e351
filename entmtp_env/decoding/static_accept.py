"""The acceptance rules as tensor operations alone, for steps that never wait for the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.acceptance import (
    AcceptanceRule,
    GreedyRule,
    SampleRule,
    TypicalRule,
)
from entmtp_env.decoding.static_tables import RowTables


@dataclass(frozen=True)
class StaticVerdict:
    """What a rule made of one verified tree, on the device.

    Attributes:
        last: The last accepted row, ``(1,)``; its path is accepted.
        chosen: The token that follows each row when the path ends there, ``(rows,)``.
        stands: Whether each row's token stands behind its parent, bool ``(rows,)``; the root's does.
    """

    last: Tensor
    chosen: Tensor
    stands: Tensor


def rule_key(rule: AcceptanceRule) -> tuple[str | float, ...] | None:
    """Name and parameters of a rule, for which a graph is captured; ``None`` when it has no static form."""
    if type(rule) is GreedyRule:
        return (rule.name,)
    if type(rule) is SampleRule:
        return (rule.name, rule.temperature)
    if type(rule) is TypicalRule:
        return (rule.name, rule.temperature, rule.epsilon, rule.alpha)
    return None


def judge(
    rule: AcceptanceRule, tables: RowTables, tokens: Tensor, logits: Tensor, noise: Tensor, length: Tensor
) -> StaticVerdict:
    """Accept a path of a verified tree, as ``rule.judge`` does.

    Args:
        rule: A rule that has a :func:`rule_key`.
        tables: Of the rows.
        tokens: Token of each row, ``(rows,)``, root first.
        logits: Verified logits of each row, ``(rows, vocab_size)``.
        noise: Gumbel noise; that of position p is in row p mod its length, ``(window, vocab_size)``.
        length: Position of the root, ``(1,)``.
    """
    scores = logits
    if isinstance(rule, SampleRule):
        scores = logits.float() / rule.temperature + noise[(length + 1 + tables.depths) % len(noise)]
    chosen = scores.max(-1).indices
    likelihood = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    stands = tokens == chosen[tables.parents]
    if isinstance(rule, TypicalRule) and len(tokens) > 1:
        stands[1:], likelihood[1:] = rule.typical(logits[tables.inner], tables.place, tokens[1:])
    stands[:1].fill_(True)
    # A row is reached when all on its path stand.
    reached = (stands | ~tables.sees).all(-1)
    depth = tables.depths.masked_fill(~reached, -1)
    path_likelihood = likelihood.masked_fill(~tables.sees, 0).sum(-1)
    last = path_likelihood.masked_fill(depth < depth.max(), float("-inf")).argmax(0, keepdim=True)
    return StaticVerdict(last, chosen, stands)
