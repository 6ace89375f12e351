"""Specs as labels of rows."""

from __future__ import annotations

import re

_BREAKS = (r"(?<=[,:|@])", r"(?<=[=._-])", r"(?<=.)")
"""Where a spec may be broken, the best places first."""


def fold_spec(spec: str, width: int) -> str:
    """Break a spec into lines of at most ``width`` characters, preferably between its parts.

    Of a policy file's path, only the name is kept; the manifest has the whole.
    """
    name, at, file = spec.partition("@")
    pieces = [name + at + re.split(r"[/\\]", file)[-1]]
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
