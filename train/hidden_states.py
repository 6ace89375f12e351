"""Hidden states of the frozen base model over training texts, each text computed once and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from filelock import FileLock
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.teacher_forcing import like_lengths
from entmtp_env.files import full_disk_named, read_json, write_text_atomically
from entmtp_env.progress import progress_bar
from train.texts import Text, texts_fingerprint

_TOKENS_PER_PASS = 4096
_PASSES_PER_SAVE = 32


class HiddenStates:
    """Final-norm hidden states in bfloat16, memory-mapped.

    Args:
        path: Data file of :func:`hidden_states`.
        rows: First row of each text and the row behind its last.
        width: Hidden size.
    """

    def __init__(self, path: Path, rows: Sequence[tuple[int, int]], width: int) -> None:
        size = path.stat().st_size // (2 * width) * width
        self._states = torch.from_file(str(path), shared=False, size=size, dtype=torch.bfloat16).view(
            -1, width
        )
        self._rows = rows

    def __getitem__(self, index: int) -> Tensor:
        """States of text ``index``, shape ``(tokens, hidden_size)``."""
        return self._states[slice(*self._rows[index])]


def hidden_states(
    backbone: Backbone, model_fingerprint: str, texts: Sequence[Text], folder: Path, gigabytes: float = 16.0
) -> HiddenStates:
    """The hidden states of ``texts``: those in ``folder`` are read, the others computed and added there.

    Takes 2 · hidden_size bytes per token on disk. What an interrupted call computed is kept, save for the
    last passes when the process was killed.

    Args:
        backbone: The base model.
        model_fingerprint: Identifies its weights.
        texts: What to run.
        folder: Cache folder; one file for each model and element type.
        gigabytes: Largest size of the file.

    Raises:
        ValueError: When a text is longer than the model's positions or has tokens that it does not know, or
            the file would become too large, or the base model overflows in its element type.
    """
    longest, largest = max(len(text.tokens) for text in texts), max(max(text.tokens) for text in texts)
    if longest > backbone.config.max_positions or largest >= backbone.config.vocab_size:
        raise ValueError(
            f"the texts have up to {longest} tokens and ids up to {largest}; the base model has "
            f"{backbone.config.max_positions} positions and {backbone.config.vocab_size} tokens. "
            "Use texts that this model wrote"
        )
    width = backbone.config.hidden_size
    key = hashlib.sha256(f"{model_fingerprint} {backbone.dtype}".encode()).hexdigest()[:16]
    data = folder / f"hidden-{key}.bf16"
    names = [texts_fingerprint([text]) for text in texts]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(data.with_suffix(".lock")):
        starts = _read_index(data, width)
        missing = list(
            {name: text for name, text in zip(names, texts, strict=True) if name not in starts}.items()
        )
        tokens = sum(len(text.tokens) for _, text in missing)
        size = 2 * width * (tokens + _rows_in(data, width)) / 1e9
        if missing and size > gigabytes:
            raise ValueError(
                f"the hidden states would take {size:.3g} GB in {data}, more than "
                f"cache_gigabytes={gigabytes:g}; raise it, use fewer texts, or delete that file when other "
                "texts left it behind"
            )
        if missing:
            _add(backbone, missing, data, starts)
    rows = [(starts[name], starts[name] + len(text.tokens)) for name, text in zip(names, texts, strict=True)]
    return HiddenStates(data, rows, width)


def _read_index(data: Path, width: int) -> dict[str, int]:
    """First row of each text in the file; rows behind the indexed ones are cut off."""
    data.touch()
    rows, starts = 0, dict[str, int]()
    # Without a sound index the rows are anybody's guess, and all are computed again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = read_json(data.with_suffix(".json"))
        if int(record["rows"]) <= _rows_in(data, width):
            rows, starts = int(record["rows"]), dict(record["starts"])
    os.truncate(data, 2 * width * rows)
    return starts


def _rows_in(data: Path, width: int) -> int:
    return data.stat().st_size // (2 * width)


def _add(backbone: Backbone, missing: list[tuple[str, Text]], data: Path, starts: dict[str, int]) -> None:
    width = backbone.config.hidden_size
    rows = _rows_in(data, width)
    with full_disk_named(data), progress_bar() as bar, data.open("ab") as file:
        total = sum(len(text.tokens) for _, text in missing)
        task = bar.add_task("hidden states (tokens)", total=total)
        try:
            passes = like_lengths([len(text.tokens) for _, text in missing], _TOKENS_PER_PASS)
            for number, indices in enumerate(passes, start=1):
                batch = [missing[i] for i in indices]
                for (name, text), states in zip(batch, _states(backbone, [t for _, t in batch]), strict=True):
                    file.write(states.contiguous().view(torch.uint8).numpy().data)
                    starts[name] = rows
                    rows += len(text.tokens)
                bar.advance(task, sum(len(text.tokens) for _, text in batch))
                if number % _PASSES_PER_SAVE == 0:
                    _save_index(file, data, starts, rows)
        finally:
            _save_index(file, data, starts, rows)


def _save_index(file: BinaryIO, data: Path, starts: dict[str, int], rows: int) -> None:
    # Rows first: an index never speaks of rows that are not on the disk.
    file.flush()
    os.fsync(file.fileno())
    write_text_atomically(data.with_suffix(".json"), json.dumps({"rows": rows, "starts": starts}))


@torch.inference_mode()
def _states(backbone: Backbone, texts: Sequence[Text]) -> list[Tensor]:
    tokens = pad_sequence([torch.tensor(text.tokens) for text in texts], batch_first=True)
    hidden = backbone.forward_batch(tokens.to(backbone.device)).to("cpu", torch.bfloat16)
    states = [row[: len(text.tokens)] for row, text in zip(hidden, texts, strict=True)]
    if not all(own.isfinite().all() for own in states):
        raise ValueError(
            f"the base model's hidden states are not finite in {str(backbone.dtype).removeprefix('torch.')}: "
            "it overflows there; use dtype bfloat16 or float32"
        )
    return states
