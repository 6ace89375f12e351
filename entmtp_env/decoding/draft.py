"""Drafting: the heads propose the tokens of a tree, level by level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.trees import DraftTree, Path


@dataclass(frozen=True)
class Level:
    """The nodes of one depth that were expanded, and what the next head says of their children.

    Attributes:
        parents: The expanded nodes (the root is the empty path).
        logits: Over the draft vocabulary, float32, ``(len(parents), vocabulary of the depth)``.
        probabilities: Their softmax.
        top: The greatest logit of each node, ``(len(parents),)``.
    """

    parents: tuple[Path, ...]
    logits: Tensor
    probabilities: Tensor
    top: Tensor


@dataclass(frozen=True)
class Draft:
    """Drafted tokens of a tree.

    Attributes:
        tree: Its topology.
        tokens: Base token id of each node, ``(nodes,)``, in the tree's order.
        confidence: Head probability of each node given its parent, float32, ``(nodes,)``.
        levels: What every expanded node proposed; a larger or smaller tree with the same root reuses it.
    """

    tree: DraftTree
    tokens: Tensor
    confidence: Tensor
    levels: tuple[Level, ...]

    @classmethod
    def of_nothing(cls, tree: DraftTree, device: torch.device) -> Draft:
        """The draft of an empty tree, which needs no heads."""
        return cls(tree, torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, device=device), ())

    def path_values(self) -> Tensor:
        """Product of confidences from the root to each node (EAGLE-2), ``(nodes,)``."""
        values = torch.cat((self.confidence.new_ones(1), self.confidence))
        parents = torch.from_numpy(self.tree.parents).to(values.device)
        for start, end in zip(self.tree.level_starts[1:], self.tree.level_starts[2:], strict=False):
            values[start:end] *= values[parents[start:end]]
        return values[1:]

    def chain(self) -> tuple[list[float], list[float]]:
        """Confidence and entropy along the greedy chain, as deep as it was drafted.

        Returns:
            Probability of the best child at each depth, and the entropy there divided by ln V′.
        """
        depth = self.tree.greedy_depth
        if not depth:
            return [], []
        chain = [
            (level, level.parents.index((0,) * above)) for above, level in enumerate(self.levels[:depth])
        ]
        values = [self.confidence[self.tree.rows[(0,) * d] - 1] for d in range(1, depth + 1)]
        values += [level.top[row] for level, row in chain]
        values += [torch.dot(level.probabilities[row], level.logits[row]) for level, row in chain]
        # One kernel and one transfer for all.
        confidence, top, mean = torch.stack(values).view(3, depth).tolist()
        # The greatest logit less the logarithm of its probability is that of the softmax's denominator.
        entropies = [
            (x - math.log(p) - m) / math.log(max(2, level.logits.shape[-1]))
            for p, x, m, (level, _) in zip(confidence, top, mean, chain, strict=True)
        ]
        return confidence, entropies


@dataclass(frozen=True)
class _LevelPlan:
    parents: tuple[Path, ...]
    new_rows: Tensor  # parents to compute now, as rows among the nodes of their own depth
    order: Tensor | None  # rows of (known + new) logits in the order of `parents`; None: as they are
    child_input: Tensor  # per child: its parent's row among the nodes of that depth
    child_parent: Tensor  # per child: its parent's place in `parents`
    child_rank: Tensor
    max_children: int
    uses_known: bool


class DraftPlan:
    """Index tables to draft ``tree``, given that the nodes of ``known`` were expanded already.

    Args:
        tree: What to draft.
        known: Topology of an earlier draft of the same root, or ``None``.
        device: Where the tables live.
    """

    def __init__(self, tree: DraftTree, known: DraftTree | None, device: torch.device) -> None:
        def table(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        self.levels: list[_LevelPlan] = []
        for depth in range(tree.depth):
            children = [node for node in tree.nodes if len(node) == depth + 1]
            parents = tuple(dict.fromkeys(node[:-1] for node in children))
            before = _expanded(known, depth) if known is not None else ()
            new = [p for p in parents if p not in before]
            pool = [*before, *new]
            order = None if pool == list(parents) else table([pool.index(p) for p in parents])
            start = tree.level_starts[depth]
            self.levels.append(
                _LevelPlan(
                    parents=parents,
                    new_rows=table([tree.rows[p] - start for p in new]),
                    order=order,
                    child_input=table([tree.rows[node[:-1]] - start for node in children]),
                    child_parent=table([parents.index(node[:-1]) for node in children]),
                    child_rank=table([node[-1] for node in children]),
                    max_children=max(node[-1] for node in children) + 1,
                    uses_known=bool(before),
                )
            )


def _expanded(tree: DraftTree, depth: int) -> tuple[Path, ...]:
    """Nodes of ``depth`` that have children in ``tree``, in order."""
    return tuple(dict.fromkeys(node[:-1] for node in tree.nodes if len(node) == depth + 1))


def draft_tree(
    heads: DraftHeads,
    state: Tensor,
    root: Tensor,
    tree: DraftTree,
    plan: DraftPlan,
    known: Draft | None = None,
) -> Draft:
    """Draft a tree below a root.

    Args:
        heads: Attached draft heads.
        state: Prefix state (or last hidden state), ``(hidden_size,)``.
        root: Token id of the root, ``(1,)``.
        tree: What to draft; not deeper than the heads.
        plan: The plan for ``tree`` and the topology of ``known``.
        known: An earlier draft below the same root; what it expanded is not computed again.

    Returns:
        The drafted tokens.
    """
    # Per node of the current depth: what its head reads, one row each.
    inputs = state[None]
    if heads.sequential:
        inputs = torch.cat((inputs, heads.embed(root)), dim=-1)
    tokens, confidence, levels = [], [], []
    for depth, step in enumerate(plan.levels):
        parts, shares = [], []
        if step.uses_known:
            assert known is not None
            parts.append(known.levels[depth].logits)
            shares.append(known.levels[depth].probabilities)
        if len(step.new_rows):
            # A Medusa head says the same of every node, so one row serves all.
            rows = inputs[step.new_rows] if heads.sequential else inputs[:1]
            logits = heads.logits(depth + 1, rows).float()
            parts.append(logits.expand(len(step.new_rows), -1))
            shares.append(logits.softmax(-1).expand(len(step.new_rows), -1))
        logits, probabilities = (x[0] if len(x) == 1 else torch.cat(x) for x in (parts, shares))
        if step.order is not None:
            logits, probabilities = logits[step.order], probabilities[step.order]
        # By logits: distinct ones may share a probability.
        top, best = logits.topk(step.max_children, dim=-1)
        best = best[step.child_parent, step.child_rank]
        level_tokens = heads.vocab_ids[best]
        tokens.append(level_tokens)
        confidence.append(probabilities[step.child_parent, best])
        levels.append(Level(step.parents, logits, probabilities, top[:, 0]))
        if heads.sequential and depth + 1 < len(plan.levels):
            inputs = torch.cat((inputs[step.child_input], heads.embed(level_tokens)), dim=-1)
    if not tokens:
        return Draft.of_nothing(tree, state.device)
    return Draft(tree, torch.cat(tokens), torch.cat(confidence), tuple(levels))
