"""Path values of a whole tree at every root of texts that are known."""

from __future__ import annotations

import torch
from torch import Tensor

from entmtp_env.decoding.certainty import most_likely
from entmtp_env.decoding.draft import DraftPlan
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.teacher_forcing import path_inputs
from entmtp_env.trees import DraftTree

_ROOTS = 256
# A block's logits over 16k tokens stay in cache.
_ROWS = 128


def check_candidates(heads: DraftHeads, tree: DraftTree) -> None:
    """Check that the heads can draft a tree.

    Raises:
        ValueError: When it is deeper than the heads, or has more siblings than a head drafts tokens.
    """
    config = heads.config
    for node in tree.nodes:
        if len(node) > config.depth or node[-1] >= config.vocab_size(len(node)):
            raise ValueError(
                f"candidates: node {node} cannot be drafted by {config.depth} heads that draft from "
                f"{config.vocab_size(1)} tokens, the deeper ones from {config.vocab_size(2)}; give a smaller "
                "tree"
            )


def path_values(heads: DraftHeads, states: Tensor, roots: Tensor, tree: DraftTree) -> Tensor:
    """What :meth:`~entmtp_env.decoding.draft.Draft.path_values` says of ``tree`` drafted at each root.

    Args:
        heads: Attached draft heads.
        states: Of :func:`~entmtp_env.decoding.teacher_forcing.root_states`, ``(roots, hidden_size)``.
        roots: Token ids, ``(roots,)``.
        tree: Nodes that the heads can draft.

    Returns:
        Product of the heads' probabilities from the root to each node, float32 ``(roots, nodes)``.
    """
    plan = DraftPlan(tree, None, states.device)
    blocks = zip(states.split(_ROOTS), roots[:, None].split(_ROOTS), strict=True)
    return torch.cat([_block(heads, plan, path_inputs(heads, *block)) for block in blocks])


def _block(heads: DraftHeads, plan: DraftPlan, inputs: Tensor) -> Tensor:
    """Path values below roots whose first head reads ``inputs``, ``(roots, inputs(1) * hidden_size)``."""
    count = len(inputs)
    inputs, above = inputs[:, None], torch.ones(count, 1, device=inputs.device)
    values = [above[:, :0]]
    for depth, level in enumerate(plan.levels, start=1):
        # A Medusa head says the same of every node, so one row serves all.
        rows = inputs[:, level.new_rows] if heads.sequential else inputs
        tokens, confidence = (
            best.view(count, -1, level.max_children).expand(-1, len(level.parents), -1)
            for best in _best(heads, depth, rows.flatten(0, 1), level.max_children)
        )
        chosen = (slice(None), level.child_parent, level.child_rank)
        above = above[:, level.child_input] * confidence[chosen]
        values.append(above)
        if heads.sequential:
            inputs = torch.cat((inputs[:, level.child_input], heads.embed(tokens[chosen])), dim=-1)
    return torch.cat(values, dim=-1)


def _best(heads: DraftHeads, depth: int, inputs: Tensor, children: int) -> tuple[Tensor, Tensor]:
    """The ``children`` best tokens of each row and their probabilities, ``(rows, children)``."""
    blocks = []
    for rows in inputs.split(_ROWS):
        logits = heads.logits(depth, rows).float()
        index, confidence = most_likely(logits, children)
        blocks.append((heads.vocab_ids[index], confidence))
    tokens, confidence = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return tokens, confidence
