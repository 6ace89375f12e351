"""Reading back what ``eval compare`` has written."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from entmtp_env.files import parse_json, read_json
from eval.interleave import Run
from eval.statistics import REFERENCE
from eval.watch import StepDetail
from policies import Episode, StepRecord

_WHICH = {"prompts": "str", "policy": "str", "prompt_id": "str"}
_FIELDS = {field.name: str(field.type) for field in dataclasses.fields(StepRecord)}
_LATER = {field.name for field in dataclasses.fields(StepRecord) if field.default is not dataclasses.MISSING}
"""Fields that results of an earlier version do not have."""
_STEP = _WHICH | {"step": "int"} | {name: kind for name, kind in _FIELDS.items() if name not in _LATER}
_EPISODE = (
    _WHICH
    | dict.fromkeys(("seed", "steps", "tokens"), "int")
    | dict.fromkeys(("seconds", "policy_seconds", "prefill_seconds"), "float")
    | dict.fromkeys(("finish_reason", "text"), "str")
)
_DETAIL = {"token_ids": "list", "text": "str", "scores": "dict", "parents": "list"} | {
    name: _FIELDS[name] for name in _LATER
}
"""What a step may have besides: token ids, numbers by name, a tree, and what came later."""


@dataclass(frozen=True)
class StoredRun:
    """One episode as it is on disk.

    Attributes:
        prompts: The prompt set.
        run: The episode, put together from its steps.
        totals: Its line of ``episodes.jsonl``.
    """

    prompts: str
    run: Run
    totals: dict[str, Any]

    @property
    def label(self) -> str:
        """Where it is, for messages."""
        return f"{self.run.policy} on {self.prompts}, prompt {self.run.episode.prompt_id!r}"


@dataclass(frozen=True)
class StoredResults:
    """A comparison on disk, finished or cut short.

    Attributes:
        path: Its folder.
        manifest: ``manifest.json``.
        runs: The episodes, in the order in which they ran.
        summary: ``summary.json``; ``None`` when the run was cut short.
    """

    path: Path
    manifest: dict[str, Any]
    runs: tuple[StoredRun, ...]
    summary: dict[str, Any] | None

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the command that ran."""
        settings: dict[str, Any] = self.manifest["settings"]
        return settings

    def sets(self) -> dict[str, dict[str, list[StoredRun]]]:
        """Episodes by prompt set and policy, on the prompts that every policy has run, in one order.

        Prompts that the run excludes are not among them. A set with no such prompt is left out. The policies
        are in the order of the command, the prompts in that in which they were drawn.
        """
        excluded = self.settings.get("exclude", ())
        found: dict[str, dict[str, dict[str, StoredRun]]] = defaultdict(lambda: defaultdict(dict))
        for own in self.runs:
            found[own.prompts][own.run.policy][own.run.episode.prompt_id] = own
        order = [*dict.fromkeys((REFERENCE, self.settings["baseline"], *self.settings["policies"]))]
        sets = {}
        for prompts, policies in found.items():
            if set(order) - set(policies):
                continue
            # In the order of the drawing; behind them what a damaged folder has besides.
            known = dict.fromkeys([*self.manifest["prompt_seeds"].get(prompts, ()), *policies[order[0]]])
            common = [p for p in known if p not in excluded and all(p in policies[name] for name in order)]
            if common:
                sets[prompts] = {name: [policies[name][p] for p in common] for name in order}
        return sets


def load_results(path: Path) -> StoredResults:
    """Read a result folder; a line that was being written when the run was cut short is left out.

    Raises:
        FileNotFoundError: When the folder, or a file that every comparison has, is missing.
        ValueError: When a file is damaged or another command wrote the folder; the message names the line.
    """
    for name in ("manifest.json", "episodes.jsonl", "steps.jsonl"):
        if not (path / name).is_file():
            raise FileNotFoundError(
                f"{path} has no {name}; pass a folder that 'python -m eval compare' wrote"
            )
    manifest = _read_json(path / "manifest.json")
    if not is_comparison(manifest):
        raise ValueError(f"{path / 'manifest.json'} is not of 'python -m eval compare'; pass such a folder")
    steps: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for where, line in _read_lines(path / "steps.jsonl", _STEP):
        own = steps[line["prompts"], line["policy"], line["prompt_id"]]
        if line["step"] != len(own):
            raise ValueError(f"{where}: step {line['step']!r}, expected {len(own)}; the file is damaged")
        if any(not 0 <= parent <= row for row, parent in enumerate(line.get("parents", ()))):
            raise ValueError(f"{where}: parents {line['parents']!r} are no tree; the file is damaged")
        own.append(line)
    runs = []
    for where, line in _read_lines(path / "episodes.jsonl", _EPISODE):
        own = steps.pop((line["prompts"], line["policy"], line["prompt_id"]), [])
        if not own:
            raise ValueError(f"{where}: steps.jsonl has no step of this episode, or it is here twice")
        runs.append(_stored_run(line, own))
    if not runs:
        raise ValueError(f"{path / 'episodes.jsonl'} has no episode; the run ended before the first")
    summary = _read_json(path / "summary.json") if (path / "summary.json").is_file() else None
    if not isinstance(summary, (dict, type(None))):
        raise ValueError(f"{path / 'summary.json'} is not a JSON object; the file is damaged")
    return StoredResults(path, manifest, tuple(runs), summary)


def is_comparison(manifest: Any) -> bool:
    """Whether a manifest is that of a comparison, and not of another command."""
    try:
        settings = manifest["settings"]
        names = [settings["baseline"], *settings["policies"]]
        seeds = manifest["prompt_seeds"]
        parts = (settings, manifest["environments"], seeds, *seeds.values())
    except (KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(part, dict) for part in parts) and all(isinstance(name, str) for name in names)


def _stored_run(totals: dict[str, Any], lines: list[dict[str, Any]]) -> StoredRun:
    records = [StepRecord(**{name: line[name] for name in _FIELDS if name in line}) for line in lines]
    details = [
        StepDetail(
            tuple(line.get("token_ids", ())),
            line.get("text", ""),
            line.get("scores", {}),
            tuple(line.get("parents", ())),
        )
        for line in lines
    ]
    episode = Episode(
        totals["prompt_id"],
        tuple(records),
        totals["prefill_seconds"],
        totals["finish_reason"],
        totals["text"],
    )
    return StoredRun(totals["prompts"], Run(totals["policy"], totals["seed"], episode, details), totals)


def _read_json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; the file is damaged") from error


def _read_lines(path: Path, types: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole lines with their place; JSON may hold Unicode line separators, so only newlines part lines."""
    *whole, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(whole, start=1):
        where = f"{path}, line {number}"
        try:
            document = parse_json(line, where)
        except ValueError as error:
            raise ValueError(f"{error}; the file is damaged") from error
        if not isinstance(document, dict):
            raise ValueError(f"{where} is not a JSON object; the file is damaged")
        if missing := [key for key in types if key not in document]:
            raise ValueError(f"{where} lacks {', '.join(missing)}; the file is damaged")
        for key, kind in (types | _DETAIL).items():
            if key in document and not _is(document[key], kind):
                raise ValueError(f"{where}: {key} is {document[key]!r}, not a {kind}; the file is damaged")
        yield where, document


def _is(value: Any, kind: str) -> bool:
    """Whether a JSON value has a type; whole numbers are floats, too, infinite ones and NaN are not."""
    if kind == "list":
        return isinstance(value, list) and all(_is(item, "int") for item in value)
    if kind == "dict":
        return isinstance(value, dict) and all(_is(item, "float") for item in value.values())
    if kind == "float" and type(value) is int:
        return True
    return type(value).__name__ == kind and (kind != "float" or math.isfinite(value))
