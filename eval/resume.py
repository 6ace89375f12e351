"""Going on with an evaluation that was stopped: what must be the same, and what is there already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entmtp_env.files import atomic_path, read_json
from eval.stored import StoredResults, is_comparison, load_results

_FREE = (
    "time",
    "command",
    "resumed",
    "settings.out",
    "settings.overwrite",
    "settings.resume",
    "settings.exclude",
    "code.commit",
    "code.changed",
)
"""What may differ between the runs of one evaluation; of the code, all but what timings depend on."""

_CODE = "code.fingerprint"
_SHOWN = 3


def stored_part(path: Path) -> StoredResults | None:
    """What a stopped evaluation has finished; ``None`` when that is nothing.

    Raises:
        FileNotFoundError: When there are episodes without a manifest or without their steps.
        ValueError: When a file is damaged.
    """
    episodes = path / "episodes.jsonl"
    return load_results(path) if episodes.is_file() and b"\n" in episodes.read_bytes() else None


def only_begun(path: Path) -> bool:
    """Whether a folder is of a comparison that was stopped within its first text, so that none is lost.

    Raises:
        ValueError: When its manifest is damaged.
    """
    manifest = path / "manifest.json"
    return manifest.is_file() and not (path / "summary.json").exists() and is_comparison(read_json(manifest))


def continued_manifest(stored: StoredResults, now: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of an evaluation that goes on: the first run's, what is excluded now, and when it resumed.

    Args:
        stored: What is there already.
        now: The manifest of the present run.

    Raises:
        ValueError: When the two are not of one evaluation: other settings, models, prompts, library versions
            or code, or another machine, whose timings must not be mixed.
    """
    # A manifest that does not say which code it is of fits to any.
    before = _leaves({"code": now.get("code")} | stored.manifest)
    present = _leaves(json.loads(json.dumps(now)))
    differing = [
        f"{key} was {before.get(key)!r}, is {present.get(key)!r}"
        for key in {**before, **present}
        if before.get(key) != present.get(key) and not key.startswith(_FREE)
    ]
    if differing:
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        advice = "run as before"
        if before.get(_CODE) != present.get(_CODE):
            advice += (
                f", with entmtp_env and policies as at commit {before.get('code.commit', '?')}, or delete "
                '"code" from its manifest.json if what changed there touches no timing'
            )
        raise ValueError(
            f"{stored.path} cannot be resumed: {'; '.join(differing[:_SHOWN])}{more}; {advice}, or choose "
            "another --out"
        )
    resumed = {key: now[key] for key in ("time", "command", "code") if key in now}
    return {
        **stored.manifest,
        "settings": stored.settings | {"exclude": list(now["settings"].get("exclude", ()))},
        "resumed": [*stored.manifest.get("resumed", []), resumed],
    }


def keep_finished(stored: StoredResults) -> None:
    """Cut off the line files what was being written when the evaluation was stopped."""
    steps = sum(len(own.run.episode.steps) for own in stored.runs)
    for name, count in (("steps.jsonl", steps), ("episodes.jsonl", len(stored.runs))):
        path = stored.path / name
        lines = path.read_bytes().split(b"\n")[:count]
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))


def _leaves(document: Any, prefix: str = "") -> dict[str, Any]:
    """The plain values of nested objects, by their dotted path."""
    if not isinstance(document, dict):
        return {prefix: document}
    dot = "." if prefix else ""
    return {
        key: value
        for name, inner in document.items()
        for key, value in _leaves(inner, f"{prefix}{dot}{name}").items()
    }
