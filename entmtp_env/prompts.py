"""Named prompt sets, and prompts from a JSON Lines file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from entmtp_env.chat_templates import dated_alike
from entmtp_env.prompt_sources import SUFFIXES, TASKS, human_eval_texts, json_line_rows, task_texts

T = TypeVar("T")

PROMPT_SETS: tuple[str, ...] = ("chat", "math", "stories", "humaneval")
"""Names that :func:`load_prompts` always finds; the first three are part of this package."""

TASK_SETS: tuple[str, ...] = tuple(TASKS)
"""Names of published sets that it reads from the Hugging Face hub, a package or a file of the user's."""

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
        spec: One of the following, then optionally ``:calibration`` (the first half; it takes the middle
            prompt of an odd set) or ``:evaluation`` (the second half):

            - a name of ``PROMPT_SETS``;
            - a name of ``TASK_SETS``, or ``<name>@<file>`` to read it from a ``.jsonl``, ``.json`` or
              ``.parquet`` file with the columns of the hub
              (:func:`~entmtp_env.prompt_sources.tasks.task_texts`);
            - a path that ends in ``.jsonl``. A line is an object with a string ``prompt``, an optional
              string ``id``, which defaults to ``<file stem>-<line number>``, and an optional boolean
              ``chat``; with ``false`` the model continues the text as it is, without its chat template. Other
              keys and blank lines are ignored.

    Returns:
        The prompts in the order of the set; at least one.

    Raises:
        FileNotFoundError: When the file does not exist, or (``PromptsUnavailableError``) a published set is
            neither installed nor to be fetched.
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

    They are the same on every day: a template that writes the date gets a fixed one.

    Args:
        tokenizer: ``transformers.PreTrainedTokenizerBase`` of the model.
        prompt: The prompt.
    """
    if prompt.chat and tokenizer.chat_template:
        turn = [{"role": "user", "content": prompt.text}]
        template = dated_alike(tokenizer.get_chat_template())
        return list(
            tokenizer.apply_chat_template(
                turn, chat_template=template, add_generation_prompt=True, return_dict=False
            )
        )
    return list(tokenizer.encode(prompt.text))


def _parse(spec: str) -> tuple[str, str]:
    """Cut the split off; the colon of a Windows drive is none."""
    name, _, split = spec.rpartition(":")
    if split in SPLITS:
        return name, split
    if name in (*PROMPT_SETS, *TASK_SETS) or name.endswith(SUFFIXES):
        raise ValueError(
            f"unknown split {split!r} in {spec!r}: use {' or '.join(f'{name}:{known}' for known in SPLITS)}, "
            f"or {name} for both"
        )
    return spec, ""


def _load(name: str) -> list[Prompt]:
    if name == "humaneval":
        return [Prompt(*item) for item in human_eval_texts()]
    if name in PROMPT_SETS:
        resource = files("entmtp_env") / "data" / "prompts" / f"{name}.jsonl"
        with resource.open("rb") as file:
            return _own_prompts(file, source=str(resource), stem=name)
    task, at, task_file = name.partition("@")
    if task in TASKS and bool(at) == bool(task_file):
        return [Prompt(*item) for item in task_texts(task, task_file)]
    if not name.endswith(".jsonl"):
        raise ValueError(
            f"unknown prompt set {name!r}: use one of {', '.join(PROMPT_SETS + TASK_SETS)}, a path that ends "
            f"in .jsonl, or a file of a published set as in {TASK_SETS[0]}@test.parquet"
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"no prompt file {path}: check the path, or use one of the sets "
            f"{', '.join(PROMPT_SETS + TASK_SETS)}"
        )
    with path.open("rb") as file:
        return _own_prompts(file, source=str(path), stem=path.stem)


def _own_prompts(file: Iterable[bytes], source: str, stem: str) -> list[Prompt]:
    """Prompts of a file in this package's own schema."""
    lines: dict[str, int] = {}
    prompts = []
    for number, row in json_line_rows(file, source):
        where = f"{source}, line {number}"
        text, prompt_id = row.get("prompt"), row.get("id", f"{stem}-{number}")
        chat = row.get("chat", True)
        if not isinstance(text, str) or not text.strip():
            raise ValueError(
                f'{where} needs "prompt", a non-empty string, got {text!r}: add it or drop the line'
            )
        if not isinstance(prompt_id, str) or not prompt_id:
            raise ValueError(
                f'{where}: "id" must be a non-empty string, got {prompt_id!r}: quote it or leave it out'
            )
        if prompt_id in lines:
            raise ValueError(
                f"{where}: id {prompt_id!r} is already taken by line {lines[prompt_id]}: give each prompt "
                "its own id, or none"
            )
        if not isinstance(chat, bool):
            raise ValueError(
                f'{where}: "chat" must be true (a chat turn) or false (a text to continue), got {chat!r}: '
                "correct it or leave it out"
            )
        lines[prompt_id] = number
        prompts.append(Prompt(prompt_id, text, chat))
    return prompts
