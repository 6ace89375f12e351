"""The files that a policy's options name, such as measured costs or recordings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def named_files(options: Mapping[str, Any]) -> list[Path]:
    """Every file that the values of options name, whatever they mean by it; names of no file are passed over.

    Args:
        options: As a spec or a policy file has them: a file alone, several as ``a.npz|b.npz`` or in a list,
            or one within another name, as in ``analytic:costs.json`` or ``chat.npz:evaluation``.

    Returns:
        The files, each once, in the order of the options.
    """
    words = [word for value in options.values() for word in _words(value)]
    return [Path(word) for word in dict.fromkeys(words) if os.path.isfile(word)]


def _words(value: Any) -> Iterable[str]:
    """A string, its parts and theirs."""
    if isinstance(value, str):
        yield value
        for part in value.split("|"):
            yield part
            yield from re.split("[:,]", part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _words(part)
