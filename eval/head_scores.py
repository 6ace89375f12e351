"""What draft heads are worth on texts: ranks of the true tokens by depth, and τ of trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE, TokenRanks
from entmtp_env.trees import DraftTree, published_trees
from entmtp_env.trees.best import best_trees
from entmtp_env.trees.walk import accept_lengths, decode_steps
from eval.statistics import Ratio, throughput_ratio

TOP_K = (1, 4, 10)
"""A true token counts as found when its rank is below one of these."""
BEST_SIZES = (8, 16, 32)
"""Nodes of the best trees."""

SetRanks = Mapping[str, Sequence[TokenRanks]]
"""Ranks of the texts of each prompt set."""


@dataclass(frozen=True)
class SetScores:
    """One set of heads on the texts of one prompt set.

    Attributes:
        texts: Number of texts.
        tokens: Number of reply tokens.
        coverage: Share of the tokens behind a reply's first that are in the draft vocabulary.
        found: By k: per depth, how often the true token is among the first k candidates where, at every lower
            depth, it was so too; ``None`` where that never happened.
        first_draft: The same at depth 1 for k = 1, with its interval over texts.
        tau: τ by tree, tokens per step of decoding with that tree alone.
    """

    texts: int
    tokens: int
    coverage: float
    found: dict[int, list[float | None]]
    first_draft: Ratio | None
    tau: dict[str, Ratio]


def fixed_trees(depth: int) -> list[DraftTree]:
    """The trees that do not depend on the texts: chains, and Hydra's; as far as heads of ``depth`` go."""
    trees = [*(DraftTree.chain(d) for d in (1, 2, 3, 4)), published_trees()["hydra-default"]]
    return [tree for tree in trees if tree.depth <= depth]


def pool(sets: SetRanks) -> list[TokenRanks]:
    """The texts of all sets."""
    return [text for texts in sets.values() for text in texts]


def best_trees_of(texts: Sequence[TokenRanks]) -> list[DraftTree]:
    """The best trees on texts, every position alike."""
    return best_trees(np.concatenate([text.ranks for text in texts]), BEST_SIZES)


def score_sets(sets: SetRanks, samples: int = 10_000, seed: int = 0) -> dict[str, SetScores]:
    """Score heads on every prompt set, and on all of them pooled.

    The best trees are cross-fitted: those fitted on every other text, of all sets together, decode the texts
    that they were not fitted on.

    Args:
        sets: Ranks of each set's texts.
        samples: Bootstrap resamples behind an interval.
        seed: Their seed.

    Returns:
        Scores by set; those of all texts as ``"pooled"`` when there is more than one set.
    """
    halves = [[text for texts in sets.values() for text in texts[parity::2]] for parity in (0, 1)]
    # With a single text there is nothing to hold back.
    fitted = [best_trees_of(half or pool(sets)) for half in reversed(halves)]
    depth = pool(sets)[0].ranks.shape[1]
    steps: dict[str, dict[str, list[int]]] = {}
    for name, texts in sets.items():
        steps[name] = {tree.name: [_count(tree, text) for text in texts] for tree in fixed_trees(depth)}
        for trees in zip(*fitted, strict=True):
            steps[name][trees[0].name] = [_count(trees[i % 2], text) for i, text in enumerate(texts)]
    scores = {name: _scores(texts, steps[name], samples, seed) for name, texts in sets.items()}
    if len(sets) > 1:
        names = next(iter(steps.values()))
        together = {tree: [count for own in steps.values() for count in own[tree]] for tree in names}
        scores["pooled"] = _scores(pool(sets), together, samples, seed)
    return scores


def _count(tree: DraftTree, text: TokenRanks) -> int:
    return len(decode_steps(accept_lengths(tree, text.ranks)))


def _scores(
    texts: Sequence[TokenRanks], steps: Mapping[str, Sequence[int]], samples: int, seed: int
) -> SetScores:
    ranks = np.concatenate([text.ranks for text in texts])
    tokens = [len(text.ranks) for text in texts]
    drafted = ranks[:, 0][ranks[:, 0] != NO_TOKEN]
    # A reply of one token has nothing to draft.
    hits = [
        (int((text.ranks[:, 0] == 0).sum()), len(text.ranks) - 1) for text in texts if len(text.ranks) > 1
    ]
    return SetScores(
        texts=len(texts),
        tokens=sum(tokens),
        coverage=float((drafted != NOT_DRAFTABLE).mean()) if len(drafted) else 1.0,
        found=found(ranks),
        first_draft=_ratio(hits, samples, seed) if hits else None,
        tau={
            tree: _ratio(list(zip(tokens, counts, strict=True)), samples, seed)
            for tree, counts in steps.items()
        },
    )


def found(ranks: npt.NDArray[np.integer]) -> dict[int, list[float | None]]:
    """How often the true token is among the first k candidates, given that it was at every lower depth.

    Args:
        ranks: Ranks as :class:`~entmtp_env.decoding.ranks.TokenRanks` has them, ``(positions, depth)``.

    Returns:
        Share per depth, by k of ``TOP_K``; ``None`` where no position is left.
    """
    result = {}
    for k in TOP_K:
        reached = np.ones(len(ranks), dtype=np.bool_)
        shares: list[float | None] = []
        for rank in ranks.T:
            reached &= rank != NO_TOKEN
            shares.append(float((rank[reached] < k).mean()) if reached.any() else None)
            reached &= rank < k
        result[k] = shares
    return result


def _ratio(counts: Sequence[tuple[int, int]], samples: int, seed: int) -> Ratio:
    """Ratio of the two sums over texts, with its bootstrap interval."""
    over, under = np.array(counts).T
    return throughput_ratio(over, under, np.ones_like(over), np.ones_like(over), samples, seed)
