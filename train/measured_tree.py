"""What is known of a tree when the search is over, and which trees are worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from entmtp_env.trees import DraftTree
from entmtp_env.trees.frontier import pareto_hull
from train.tree_search import TreeRun

Kind = Literal["autoregressive", "greedy", "optimal", "published"]


@dataclass(frozen=True)
class MeasuredTree:
    """A tree, as the search saw it and on its own.

    Attributes:
        tree: The tree.
        kind: Where it is from.
        estimate: Mean accepted drafts by which it was chosen; ``None`` for a tree that was not searched for.
        run: The tree on its own.
    """

    tree: DraftTree
    kind: Kind
    estimate: float | None
    run: TreeRun

    @property
    def estimated_tau(self) -> float | None:
        """Tokens per step, by the estimate."""
        return None if self.estimate is None else self.estimate + 1

    @property
    def bias(self) -> float | None:
        """Relative error of the estimated tokens per step, as in the paper's table; > 0 is optimistic."""
        return None if self.estimate is None else (self.estimate + 1) / self.run.tau - 1

    def row(self) -> dict[str, Any]:
        """Its numbers, as JSON values."""
        return {
            "name": self.tree.name,
            "kind": self.kind,
            "size": len(self.tree),
            "depth": self.tree.depth,
            "estimated_tokens_per_step": self.estimated_tau,
            "tokens_per_step": self.run.tau,
            "bias": self.bias,
            "tokens_per_second": self.run.rate,
            "seconds": self.run.seconds,
            "prefill_seconds": self.run.prefill_seconds,
            "fingerprint": self.tree.fingerprint,
        }


def throughput_hull(trees: Sequence[MeasuredTree]) -> list[MeasuredTree]:
    """The trees that no smaller one outruns, by size (EntMTP, stage 2); the last is EntMTP*."""
    sizes, rates = [len(own.tree) for own in trees], [own.run.rate for own in trees]
    return [trees[i] for i in pareto_hull(sizes, rates)]


def most_biased(trees: Sequence[MeasuredTree]) -> MeasuredTree:
    """The greedy tree whose estimate is farthest off, in either direction."""
    return max((own for own in trees if own.kind == "greedy"), key=lambda own: abs(own.bias or 0.0))


def fastest_by_size(trees: Sequence[MeasuredTree], kind: Kind) -> dict[int, MeasuredTree]:
    """Of each size, the tree of one kind with the most tokens per second."""
    best: dict[int, MeasuredTree] = {}
    for own in trees:
        size = len(own.tree)
        if own.kind == kind and (size not in best or own.run.rate > best[size].run.rate):
            best[size] = own
    return best
