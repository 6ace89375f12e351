"""What ``train costs`` times: each tree of a bank, or each depth and number of nodes of staged drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entmtp_env.decoding.stages import DEEPER, Stages
from entmtp_env.live import LiveEnv
from entmtp_env.trees import DraftTree, Path, TopologyBank

Timing = tuple[float, float, float]
"""Seconds of a whole step, observations left out; of its drafting; of its verification."""


@dataclass(frozen=True)
class TimedStep:
    """A decode step as the actions that lead to it.

    Attributes:
        tree: What it drafts and verifies; of staged drafts, a tree of as many nodes and depths.
        actions: The actions, one after the other.
    """

    tree: DraftTree
    actions: tuple[int, ...]

    def run(self, env: LiveEnv) -> Timing:
        """Take the actions.

        Raises:
            RuntimeError: When the text ends.
        """
        whole = draft = verify = 0.0
        for action in self.actions:
            *_, info = env.step(action)
            if info["finish_reason"]:
                raise RuntimeError(
                    f"tree {self.tree.name!r} behind {env.decoder.length} tokens: {info['finish_reason']}"
                )
            # Not every policy reads observations.
            whole += info["seconds"] - info["feature_seconds"]
            draft += info["draft_seconds"]
            verify += info["verify_seconds"]
        return whole, draft, verify


def steps_of_bank(bank: TopologyBank) -> list[TimedStep]:
    """A step with each tree."""
    return [TimedStep(tree, (k,)) for k, tree in enumerate(bank)]


def steps_of_stages(stages: Stages) -> list[TimedStep]:
    """A step for each depth with each budget that it fills and that can reach it."""
    drafted = [start - 1 for start in stages.shape.starts[1:]]
    return [
        TimedStep(_broom(depth, nodes), (DEEPER,) * depth + (1 + k,))
        for depth, most in enumerate(drafted)
        for k, nodes in enumerate(stages.budgets)
        if depth <= nodes <= most
    ]


def _broom(depth: int, nodes: int) -> DraftTree:
    """A tree of that depth and size: a chain, and the rest beside its first node."""
    if not depth:
        return DraftTree("autoregressive")
    chain: Sequence[Path] = [(0,) * d for d in range(1, depth + 1)]
    return DraftTree(f"{nodes}-in-{depth}", (*chain, *((rank,) for rank in range(1, 1 + nodes - depth))))
