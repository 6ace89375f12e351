"""Specs as labels of rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_BREAKS = (r"(?<=[,:|@])", r"(?<=[=._-])", r"(?<=.)")
"""Where a spec may be broken, the best places first."""


def label_specs(specs: Iterable[str]) -> dict[str, str]:
    """Labels of the rows of one table or picture, by spec.

    Of a policy file's path, as much of the end is kept as tells the rows apart; the manifest has the whole.
    """
    return _apart({spec: _endings(*spec.partition("@")) for spec in specs})


def label_paths(paths: Iterable[str]) -> dict[str, str]:
    """As :func:`label_specs`, where names are paths as a whole."""
    return _apart({path: _endings("", "", path) for path in paths})


def fold_spec(spec: str, width: int) -> str:
    """Break a spec into lines of at most ``width`` characters, preferably between its parts."""
    pieces = [spec]
    for pattern in _BREAKS:
        pieces = [
            p for piece in pieces for p in (re.split(pattern, piece) if len(piece) > width else [piece])
        ]
    lines = [""]
    for piece in filter(None, pieces):
        if len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _endings(name: str, at: str, file: str) -> list[str]:
    """What a label may be: with the last part of the path, with the last two, and so on to all."""
    starts = [0, *(separator.end() for separator in re.finditer(r"[/\\]", file))]
    return [name + at + file[start:] for start in reversed(starts)]


def _apart(endings: Mapping[str, list[str]]) -> dict[str, str]:
    """The first ending of each that no other has when all are cut alike."""
    most = max(map(len, endings.values()), default=0)
    alike = [Counter(own[min(k, len(own) - 1)] for own in endings.values()) for k in range(most)]
    return {
        name: next((own for own, seen in zip(every, alike, strict=False) if seen[own] == 1), every[-1])
        for name, every in endings.items()
    }
