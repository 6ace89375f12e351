"""Staged drafts of recorded texts, made by reading the texts again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.staged_draft import first_stage, next_stage
from entmtp_env.decoding.teacher_forcing import like_lengths, root_states
from entmtp_env.engine import Engine
from entmtp_env.progress import progress_bar
from entmtp_env.replay.recorder import text_seed
from entmtp_env.replay.recording import IDENTITY, RecordedText, Recording
from entmtp_env.replay.staged_drafts import StagedDrafts, identity

_TOKENS_PER_PASS = 4096
# A block's logits over 16k tokens stay in cache.
_ROOTS = 32


@torch.inference_mode()
def record_stages(
    engine: Engine, recording: Recording, prompts: Mapping[str, Sequence[int]], shape: DraftShape
) -> StagedDrafts:
    """Draft in stages at every row of a recording, in batched teacher-forced passes.

    Args:
        engine: The model and heads that it was made with.
        recording: The texts.
        prompts: Token ids of their prompts, by prompt id.
        shape: How wide the depths are; not deeper than the heads.

    Raises:
        ValueError: When model, heads, element type or prompts are others than those of the recording.
    """
    for key in IDENTITY:
        if key in engine.manifest and engine.manifest[key] != recording.manifest[key]:
            raise ValueError(
                f"the recording has {key} {recording.manifest[key]!r}, the engine {engine.manifest[key]!r}; "
                "draft with what it was made with"
            )
    for text in recording.texts:
        if not _is_prompt_of(text, prompts.get(text.prompt_id, ()), recording.manifest.get("seed")):
            raise ValueError(
                f"prompt {text.prompt_id!r} of {text.prompt_tokens} tokens is not among the prompts given; "
                "give the prompt sets that were recorded"
            )
    edges = list(zip(recording.offsets[:-1], recording.offsets[1:], strict=True))
    texts = [
        torch.cat((torch.tensor(prompts[text.prompt_id]), torch.from_numpy(recording.tokens[a:b]).long()))
        for text, (a, b) in zip(recording.texts, edges, strict=True)
    ]
    values = np.empty((len(recording.tokens), shape.nodes), dtype=np.float32)
    expanded = np.empty((len(recording.tokens), sum(shape.expand)), dtype=np.uint16)
    with progress_bar() as bar:
        task = bar.add_task("drafting in stages", total=len(texts))
        for batch in like_lengths(list(map(len, texts)), _TOKENS_PER_PASS):
            tokens = pad_sequence([texts[i] for i in batch], batch_first=True).to(engine.backbone.device)
            starts = torch.tensor([[recording.texts[i].prompt_tokens] for i in batch])
            ends = torch.tensor([[len(texts[i])] for i in batch])
            column = torch.arange(tokens.shape[1])
            roots = ((column >= starts) & (column < ends)).to(tokens.device)
            states = root_states(engine.heads, engine.backbone.forward_batch(tokens), roots)
            drafted = _draft(engine.heads, shape, states, tokens[roots])
            rows = np.concatenate([np.arange(*edges[i]) for i in batch])
            values[rows], expanded[rows] = drafted
            bar.advance(task, len(batch))
    ids = tuple(text.prompt_id for text in recording.texts)
    made = identity(recording), shape, ids, recording.offsets, recording.tokens
    return StagedDrafts(*made, values, expanded)


def _is_prompt_of(text: RecordedText, prompt: Sequence[int], seed: int | None) -> bool:
    """Whether a text answers a prompt, by its length, and by the text's own seed where the run's is known."""
    known = seed is None or text.seed == text_seed(seed, text.prompt_id, prompt)
    return len(prompt) == text.prompt_tokens and known


def _draft(
    heads: DraftHeads, shape: DraftShape, states: Tensor, roots: Tensor
) -> tuple[npt.NDArray[Any], ...]:
    """Values and expanded places of all depths below each root, side by side."""
    blocks = []
    for own, tokens in zip(states.split(_ROOTS), roots.split(_ROOTS), strict=True):
        stages = [first_stage(heads, shape, own, tokens)]
        while len(stages) < shape.depth:
            stages.append(next_stage(heads, shape, stages[-1]))
        values = torch.cat([stage.values for stage in stages], dim=1)
        blocks.append((values, torch.cat([stage.expanded for stage in stages], dim=1)))
    return tuple(torch.cat(parts).cpu().numpy() for parts in zip(*blocks, strict=True))
