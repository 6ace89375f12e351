"""Hidden states of the frozen base model over training texts, computed once and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.files import atomic_path, write_text_atomically
from entmtp_env.progress import progress_bar
from train.texts import Text, texts_fingerprint

_TOKENS_PER_PASS = 4096


class HiddenStates:
    """Final-norm hidden states of each text, in bfloat16, memory-mapped.

    Args:
        path: Data file written by :func:`hidden_states`.
        lengths: Tokens of each text, in file order.
        width: Hidden size.
    """

    def __init__(self, path: Path, lengths: Sequence[int], width: int) -> None:
        self._starts = [0]
        for length in lengths:
            self._starts.append(self._starts[-1] + length)
        rows = self._starts[-1]
        flat = torch.from_file(str(path), shared=False, size=rows * width, dtype=torch.bfloat16)
        self._rows = flat.view(rows, width)

    def __getitem__(self, index: int) -> Tensor:
        """States of text ``index``, shape ``(tokens, hidden_size)``."""
        return self._rows[self._starts[index] : self._starts[index + 1]]


def hidden_states(
    backbone: Backbone, model_fingerprint: str, texts: Sequence[Text], folder: Path
) -> HiddenStates:
    """The hidden states of ``texts``, from ``folder`` when they are there, else computed and kept there.

    Takes 2 · hidden_size bytes per token on disk.

    Args:
        backbone: The base model.
        model_fingerprint: Identifies its weights.
        texts: What to run; order matters.
        folder: Cache folder.

    Raises:
        ValueError: When a text is longer than the model's positions, or has tokens that it does not know.
    """
    lengths = [len(text.tokens) for text in texts]
    width = backbone.config.hidden_size
    longest, largest = max(lengths), max(max(text.tokens) for text in texts)
    if longest > backbone.config.max_positions or largest >= backbone.config.vocab_size:
        raise ValueError(
            f"the texts have up to {longest} tokens and ids up to {largest}; the base model has "
            f"{backbone.config.max_positions} positions and {backbone.config.vocab_size} tokens. "
            "Use texts that this model wrote"
        )
    key = f"{model_fingerprint} {backbone.dtype} {texts_fingerprint(texts)}"
    stem = folder / f"hidden-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    data, seal = stem.with_suffix(".bf16"), stem.with_suffix(".json")
    if not (seal.is_file() and data.is_file() and data.stat().st_size == 2 * width * sum(lengths)):
        with atomic_path(data) as temporary:
            _compute(backbone, texts, temporary)
        write_text_atomically(seal, json.dumps({"key": key, "tokens": sum(lengths)}))
    return HiddenStates(data, lengths, width)


def _compute(backbone: Backbone, texts: Sequence[Text], path: Path) -> None:
    width = backbone.config.hidden_size
    lengths = [len(text.tokens) for text in texts]
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    out = torch.from_file(str(path), shared=True, size=starts[-1] * width, dtype=torch.bfloat16)
    out = out.view(-1, width)
    # Texts of like length share a pass, so that little is padding.
    order = sorted(range(len(texts)), key=lengths.__getitem__, reverse=True)
    with progress_bar() as bar, torch.inference_mode():
        task = bar.add_task("hidden states (tokens)", total=starts[-1])
        while order:
            count = max(1, _TOKENS_PER_PASS // lengths[order[0]])
            batch, order = order[:count], order[count:]
            tokens = torch.zeros(len(batch), lengths[batch[0]], dtype=torch.int64)
            for row, index in enumerate(batch):
                tokens[row, : lengths[index]] = torch.tensor(texts[index].tokens)
            hidden = backbone.forward_batch(tokens.to(backbone.device)).to("cpu", torch.bfloat16)
            for row, index in enumerate(batch):
                out[starts[index] : starts[index + 1]] = hidden[row, : lengths[index]]
            bar.advance(task, sum(lengths[index] for index in batch))
