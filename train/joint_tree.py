"""One rollout step of Algorithm 1 (EntMTP, arXiv 2606.27550): a tree goes on, its candidates are scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from entmtp_env.decoding.acceptance import AcceptanceRule, Verdict
from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.trees import DraftTree, Path


@dataclass(frozen=True)
class JointTree:
    """A tree T and some of its candidates, drafted and verified together.

    Attributes:
        tree: T.
        nodes: The candidates; each has its parent in T.
    """

    tree: DraftTree
    nodes: tuple[Path, ...]

    @cached_property
    def whole(self) -> DraftTree:
        """T and all the candidates."""
        return _tree_with(self.tree, self.nodes)

    def judge(
        self, rule: AcceptanceRule, nodes: tuple[Path, ...], tokens: Tensor, logits: Tensor, position: int
    ) -> Verdict:
        """What the rule makes of T with only the candidates ``nodes``, in rows of the whole tree.

        Args:
            rule: The rule.
            nodes: Some of the candidates.
            tokens: Token of each row of the whole tree.
            logits: Verified logits of each row.
            position: Absolute position of the root.
        """
        part = _tree_with(self.tree, nodes)
        rows = torch.tensor([0, *(self.whole.rows[node] for node in part.nodes)])
        verdict = rule.judge(part, tokens[rows], logits[rows], position)
        return Verdict(rows[verdict.rows].tolist(), verdict.next_tokens, verdict.first_draft_right)


def joint_step(
    decoder: TreeDecoder, rule: AcceptanceRule, joints: Sequence[JointTree], gains: dict[Path, int]
) -> int:
    """Decode one step by T's own verdict.

    Args:
        decoder: A started decoder.
        rule: The rule that it was started with.
        joints: Joint trees of the same T, one or more; each is verified in a pass of its own.
        gains: By candidate; grows by the further drafts that T with the candidate would have accepted.

    Returns:
        Accepted drafts of T.
    """
    for joint in joints:
        tokens, hidden, logits = decoder.verify(decoder.draft(joint.whole))
        own = joint.judge(rule, (), tokens, logits, decoder.length)
        depth, kept = len(own.rows) - 1, len(decoder.cut(own, tokens)[0])
        # With its parent in T, a candidate makes T's longest path longer by one draft at most. One of the
        # same length counts, too: where it is likelier, an EOS may stand elsewhere on it.
        left = tuple(node for node in joint.nodes if depth <= len(node) <= depth + 1)
        while left:
            # All together, then without the one that won: what judging each alone gives, in fewer passes.
            verdict = joint.judge(rule, left, tokens, logits, decoder.length)
            winner = ((), *joint.whole.nodes)[verdict.rows[-1]]
            if winner not in left:
                break
            gains[winner] += len(decoder.cut(verdict, tokens)[0]) - kept
            left = tuple(node for node in left if node != winner)
    # The rows of the last pass are those in the cache.
    return len(decoder.commit(own, tokens, hidden, logits)) - 1


@lru_cache(maxsize=1024)
def _tree_with(tree: DraftTree, nodes: tuple[Path, ...]) -> DraftTree:
    return DraftTree(f"{tree.name}+{len(nodes)}", (*tree.nodes, *nodes))
