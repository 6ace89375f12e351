"""Short specs in strings, as typed on a command line: ``name:argument:key=value@file``, or part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Scalar = str | int | float | bool

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


@dataclass(frozen=True)
class Spec:
    """A parsed spec.

    Attributes:
        name: What is meant, such as ``"threshold"``.
        argument: The one part without ``=``, such as the tree in ``static:hydra-default``; may be empty.
        options: The ``key=value`` parts, values as int, float, bool or str.
        file: The path behind ``@``, or ``None``.
    """

    name: str
    argument: str = ""
    options: dict[str, Scalar] = field(default_factory=dict)
    file: str | None = None


def parse_spec(text: str) -> Spec:
    """Parse ``name``, ``name:argument,key=value,...``, ``name@path`` or ``name:key=value,...@path``.

    Behind the argument a colon does as well as a comma: ``module:Class:key=value,...``.

    Args:
        text: The spec.

    Returns:
        Its parts; numbers, ``true`` and ``false`` in option values are converted.

    Raises:
        ValueError: When the name is empty, a key is doubled or empty, or there is more than one argument.
    """
    before, at, file = text.partition("@")
    if at and not (before and file):
        raise ValueError(f"{text!r}: write name@path, such as threshold@policy.json")
    name, _, rest = before.partition(":")
    if not name:
        raise ValueError(f"{text!r} lacks a name before the colon; write name or name:key=value,...")
    argument, options = "", {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        left, equals, value = (p.strip() for p in part.partition("="))
        own, _, key = (p.strip() for p in (left.rpartition(":") if equals else (left, "", "")))
        if own and argument:
            raise ValueError(f"{text!r} has two arguments, {argument!r} and {own!r}; options are key=value")
        argument = own or argument
        if equals:
            if not key or key in options:
                raise ValueError(f"{text!r}: option {part!r} has an empty or repeated key")
            options[key] = _convert(value)
    return Spec(name, argument, options, file if at else None)


def _convert(value: str) -> Scalar:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _NUMBER.match(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value
