"""Drafting one depth at a time: the best nodes so far get children; for one root, or many side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.certainty import most_likely
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.teacher_forcing import path_inputs


@dataclass(frozen=True)
class Stage:
    """The drafted nodes of one depth, in the order of :class:`~entmtp_env.decoding.draft_shape.DraftShape`.

    Attributes:
        depth: 1, 2, ..., D.
        inputs: What the depth's head read, ``(roots, expanded, inputs(depth) * hidden_size)``; of a Medusa
            head, which reads the same at every node, one row serves all.
        expanded: Place of each expanded node within the depth before, the best first, ``(roots, expanded)``.
        tokens: Token id of each node, ``(roots, nodes)``.
        values: Product of confidences from the root to each node, float32 ``(roots, nodes)``.
    """

    depth: int
    inputs: Tensor
    expanded: Tensor
    tokens: Tensor
    values: Tensor


def first_stage(heads: DraftHeads, shape: DraftShape, states: Tensor, roots: Tensor) -> Stage:
    """Draft depth 1.

    Args:
        heads: Attached draft heads.
        shape: How wide the depths are.
        states: What the heads read of the base at each root, ``(roots, hidden_size)``.
        roots: Token ids, ``(roots,)``.
    """
    inputs = path_inputs(heads, states, roots[:, None])[:, None]
    above = torch.ones(len(roots), 1, device=states.device)
    return _stage(heads, shape, 1, inputs, above, torch.zeros_like(above, dtype=torch.int64))


def next_stage(heads: DraftHeads, shape: DraftShape, last: Stage) -> Stage:
    """Draft one depth more, below the nodes of ``last`` with the highest values."""
    depth = last.depth + 1
    above, expanded = last.values.topk(shape.expand[depth - 1], dim=-1)
    inputs = last.inputs
    if heads.sequential:
        row = torch.arange(len(inputs), device=inputs.device)[:, None]
        parents = inputs[row, expanded // shape.children[depth - 2]]
        inputs = torch.cat((parents, heads.embed(last.tokens.gather(1, expanded))), dim=-1)
    return _stage(heads, shape, depth, inputs, above, expanded)


def _stage(
    heads: DraftHeads, shape: DraftShape, depth: int, inputs: Tensor, above: Tensor, expanded: Tensor
) -> Stage:
    children = shape.children[depth - 1]
    logits = heads.logits(depth, inputs.flatten(0, 1)).float()
    index, confidence = most_likely(logits, children)
    per_node = (*expanded.shape, children)
    tokens, confidence = (
        x.view(*inputs.shape[:2], children).expand(per_node) for x in (heads.vocab_ids[index], confidence)
    )
    values = confidence * above[..., None]
    return Stage(depth, inputs, expanded, tokens.flatten(1), values.flatten(1))
