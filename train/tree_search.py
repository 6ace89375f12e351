"""Algorithm 1 of EntMTP (arXiv 2606.27550, stage 1): the acceptance frontier, one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from entmtp_env.progress import progress_bar
from entmtp_env.trees import DraftTree, Path, TopologyBank
from entmtp_env.trees.frontier import START, candidates, choose, grow
from train.journal import Journal


@dataclass(frozen=True)
class Rollout:
    """What one pass over the texts says of a tree and of all that it may grow by.

    Attributes:
        steps: Decode steps of the tree.
        accepted: Drafts that they accepted, those behind the end of a text not counted.
        gains: By candidate, the further drafts that the same steps would have accepted with it.
    """

    steps: int
    accepted: int
    gains: dict[Path, int]

    def accept_length(self, node: Path | None = None) -> float:
        """Mean accepted drafts a step, of the tree or of the tree with one candidate."""
        return (self.accepted + (0 if node is None else self.gains[node])) / self.steps


@dataclass(frozen=True)
class TreeRun:
    """A tree on its own, on all texts.

    Attributes:
        tokens: Tokens generated.
        steps: Decode steps.
        seconds: Time of the decode steps.
        prefill_seconds: Time of the prompts.
    """

    tokens: int
    steps: int
    seconds: float
    prefill_seconds: float

    @property
    def tau(self) -> float:
        """Tokens per step: the accepted drafts and the root."""
        return self.tokens / self.steps

    @property
    def rate(self) -> float:
        """Tokens per second, prefill included."""
        return self.tokens / (self.seconds + self.prefill_seconds)


class TextSource(Protocol):
    """Texts to search on: a live decoder's or those of a recording."""

    @property
    def depth(self) -> int:
        """Number of draft heads."""
        ...

    @property
    def count(self) -> int:
        """Number of texts."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """All that accept lengths depend on; JSON values."""
        ...

    @property
    def manifest(self) -> dict[str, Any]:
        """Names and fingerprints for the result; JSON values."""
        ...

    def rollout(self, tree: DraftTree, nodes: Sequence[Path], tick: Callable[[], object]) -> Rollout:
        """Decode every text with ``tree`` and score the candidates ``nodes``; ``tick`` after each text."""
        ...

    def run(self, bank: TopologyBank) -> list[TreeRun]:
        """Decode and time every text with every tree of a bank."""
        ...


@dataclass(frozen=True)
class FrontierTree:
    """A tree of the acceptance frontier.

    Attributes:
        tree: The tree, ``greedy-<nodes>``.
        accept_length: Mean accepted drafts that the search gave it: its score in the rollout of the tree
            before it, and so on that tree's states (of the first, its own).
    """

    tree: DraftTree
    accept_length: float


def search(source: TextSource, depth: int, budget: int, journal: Journal) -> list[FrontierTree]:
    """Grow the frontier from the tree ``{(0)}`` to one of ``budget`` nodes, by one rollout a node.

    Args:
        source: Where to roll out.
        depth: Depth that no node may exceed.
        budget: Nodes of the largest tree, 1 or more.
        journal: The trees found so far; each is added as it is found.

    Returns:
        The trees of 1 to ``budget`` nodes.
    """
    with progress_bar() as bar:
        known = min(len(journal.rows), budget)
        task = bar.add_task("searching", total=budget * source.count, completed=known * source.count)

        def roll(tree: DraftTree, nodes: Sequence[Path]) -> Rollout:
            return source.rollout(tree, nodes, lambda: bar.advance(task))

        while len(journal.rows) < budget:
            if not journal.rows:
                tree, accept_length = START, roll(START, ()).accept_length()
            else:
                before = _frontier_tree(len(journal.rows), journal.rows[-1]).tree
                rollout = roll(before, candidates(before, depth))
                node = choose(rollout.gains)
                tree, accept_length = grow(before, node), rollout.accept_length(node)
            bar.update(task, description=f"searching, {len(tree)} nodes accept {accept_length:.2f}")
            journal.add({"nodes": tree.nodes, "accept_length": accept_length})
    return [_frontier_tree(size, row) for size, row in enumerate(journal.rows[:budget], start=1)]


def _frontier_tree(size: int, row: dict[str, Any]) -> FrontierTree:
    return FrontierTree(DraftTree.from_paths(f"greedy-{size}", row["nodes"]), row["accept_length"])
