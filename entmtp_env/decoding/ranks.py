"""Where the true tokens of a text stand among the drafts: the record that prices every tree on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.certainty import certainty
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.teacher_forcing import like_lengths, path_inputs, root_states, true_paths

NO_TOKEN = -1
"""Rank where the text has no token any more."""
NOT_DRAFTABLE = np.iinfo(np.int32).max
"""Rank of a token outside the draft vocabulary: in no tree."""

_TOKENS_PER_PASS = 4096
# A block's logits over 16k tokens stay in cache.
_ROWS = 128


@dataclass(frozen=True)
class TokenRanks:
    """One reply as its draft heads see it; row p has reply token p as root.

    Attributes:
        ranks: Rank of reply token p + d among the candidates of head d on the true path, in column d - 1,
            int32 ``(tokens, depth)``. Of candidates with equal logits the lower draft index comes first.
            ``NO_TOKEN`` past the end of the reply, ``NOT_DRAFTABLE`` outside the draft vocabulary. A tree
            accepts the longest prefix of a row that is one of its paths.
        confidence: Probability of the best candidate at each depth of the greedy chain as it is drafted
            (along its own tokens, which are the true ones as long as the ranks are 0), float32, same shape.
        entropy: Entropy of the same distributions, divided by ln of the depth's vocabulary, float32, same
            shape.
    """

    ranks: npt.NDArray[np.int32]
    confidence: npt.NDArray[np.float32]
    entropy: npt.NDArray[np.float32]


@torch.inference_mode()
def rank_texts(
    backbone: Backbone, heads: Sequence[DraftHeads], texts: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[int, list[TokenRanks]]]:
    """Rank the tokens of texts in batched teacher-forced passes, the base's shared by all heads.

    Args:
        backbone: The base model.
        heads: Sets of draft heads attached to it.
        texts: Token ids of prompt and reply, neither empty.

    Yields:
        Number of the text and its ranks under each set of heads, longest texts first.

    Raises:
        ValueError: When a prompt or a reply is empty, or a text exceeds the model's positions.
    """
    if any(not prompt or not reply for prompt, reply in texts):
        raise ValueError("a text to rank needs a prompt and a reply of at least one token each")
    lengths = [len(prompt) + len(reply) for prompt, reply in texts]
    for batch in like_lengths(lengths, _TOKENS_PER_PASS):
        tokens = pad_sequence([torch.tensor([*texts[i][0], *texts[i][1]]) for i in batch], batch_first=True)
        roots = torch.zeros_like(tokens, dtype=torch.bool)
        for row, index in enumerate(batch):
            roots[row, len(texts[index][0]) : lengths[index]] = True
        tokens, roots = tokens.to(backbone.device), roots.to(backbone.device)
        hidden = backbone.forward_batch(tokens)
        edges = np.cumsum([len(texts[index][1]) for index in batch])[:-1]
        ranked = []
        for one in heads:
            columns = token_ranks(one, tokens, hidden, roots)
            ranked.append([np.split(column.cpu().numpy(), edges) for column in columns])
        for row, index in enumerate(batch):
            yield index, [TokenRanks(*(column[row] for column in columns)) for columns in ranked]


def token_ranks(
    heads: DraftHeads, tokens: Tensor, hidden: Tensor, roots: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Ranks of the true tokens, and confidences and entropies of the greedy chain, at every root.

    Args:
        heads: Attached draft heads.
        tokens: Token ids, ``(batch, length)``.
        hidden: The base's hidden states, ``(batch, length, hidden_size)``.
        roots: True at the tokens of the replies, ``(batch, length)``; never at a text's first token.

    Returns:
        What :class:`TokenRanks` holds, each ``(roots, depth)``, row-major.
    """
    depths = heads.config.depth
    states = root_states(heads, hidden, roots)
    paths = true_paths(tokens, roots, depths)
    draft_index = torch.full((int(max(tokens.max(), heads.vocab_ids.max())) + 1,), -1, device=tokens.device)
    draft_index[heads.vocab_ids] = torch.arange(len(heads.vocab_ids), device=tokens.device)
    ranks = torch.full((len(paths), depths), NO_TOKEN, dtype=torch.int32, device=tokens.device)
    confidence = torch.zeros(len(paths), depths, device=tokens.device)
    entropy = torch.zeros_like(confidence)
    chain = paths[:, :1]
    for depth in range(1, depths + 1):
        has_token = paths[:, depth] >= 0
        on_true_path = has_token
        if heads.sequential:
            on_true_path = has_token & (chain == paths[:, :depth]).all(-1)
        true, astray = has_token.nonzero()[:, 0], (~on_true_path).nonzero()[:, 0]
        below = torch.cat((paths[true, :depth], chain[astray]))
        inputs = path_inputs(heads, states[torch.cat((true, astray))], below)
        label = draft_index[paths[true, depth]]
        label = label.where(label < heads.config.vocab_size(depth), -1)
        labels = torch.cat((label, label.new_full((len(astray),), -1)))
        rank, best, sure, unsure = _candidates(heads, depth, inputs, labels)
        ranks[true, depth - 1] = rank[: len(true)]
        drafted = torch.empty_like(paths[:, 0])
        # On the true path the chain's draft is the true path's; elsewhere it has its own.
        for rows, part in ((true, slice(len(true))), (astray, slice(len(true), None))):
            drafted[rows] = heads.vocab_ids[best[part]]
            confidence[rows, depth - 1] = sure[part]
            entropy[rows, depth - 1] = unsure[part]
        chain = torch.cat((chain, drafted[:, None]), dim=-1)
    return ranks, confidence, entropy


def _candidates(
    heads: DraftHeads, depth: int, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per row: rank of the label (draft index, -1 if none), best draft index, its probability, entropy."""
    size = heads.config.vocab_size(depth)
    columns = torch.arange(size, device=inputs.device)
    blocks = []
    for rows, label in zip(inputs.split(_ROWS), labels[:, None].split(_ROWS), strict=True):
        logits = heads.logits(depth, rows)
        true = logits.gather(1, label.clamp_min(0))
        rank = (logits > true).sum(-1, dtype=torch.int32)
        tied = ((logits >= true).sum(-1, dtype=torch.int32) > rank + 1).nonzero()[:, 0]
        equal_before = (logits[tied] == true[tied]) & (columns < label[tied])
        rank[tied] += equal_before.sum(-1, dtype=torch.int32)
        rank[label[:, 0] < 0] = NOT_DRAFTABLE
        sure, entropy = certainty(logits)
        blocks.append((rank, logits.max(-1).indices, sure, entropy))
    if not blocks:
        return labels.int(), labels, labels.float(), labels.float()
    rank, best, sure, entropy = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return rank, best, sure, entropy
