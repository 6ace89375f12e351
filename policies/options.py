"""Options as typed in a spec or stored in JSON, read into checked values."""

from __future__ import annotations

import itertools
import math
from typing import Any


def number(option: str, value: Any) -> float:
    """A finite number.

    Raises:
        ValueError: When ``value`` is none.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"option {option}={value!r} is not a number") from None
    if not math.isfinite(result):
        raise ValueError(f"option {option}={value!r} must be finite")
    return result


def whole_number(option: str, value: Any, minimum: int) -> int:
    """A whole number of at least ``minimum``.

    Raises:
        ValueError: When ``value`` is none, or too small.
    """
    result = number(option, value)
    if result != int(result) or result < minimum:
        raise ValueError(f"option {option}={value!r} must be a whole number >= {minimum}")
    return int(result)


def names(option: str, value: Any) -> tuple[str, ...]:
    """Names, from a sequence of strings or from one string such as ``a|b|c``.

    Raises:
        ValueError: When ``value`` is neither.
    """
    parts = value.split("|") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts or not all(isinstance(p, str) and p for p in parts):
        raise ValueError(f"option {option}={value!r} is not a list of names; write {option}=a|b|c")
    return tuple(parts)


def increasing_numbers(option: str, value: Any) -> tuple[float, ...]:
    """Strictly increasing numbers, from a sequence, from one number, or from a string such as ``0.2|0.5``.

    Raises:
        ValueError: When ``value`` is none of these, or not increasing.
    """
    if isinstance(value, str):
        value = value.split("|") if value else ()
    parts = value if isinstance(value, (list, tuple)) else (value,)
    result = tuple(number(option, part) for part in parts)
    if any(a >= b for a, b in itertools.pairwise(result)):
        raise ValueError(f"option {option}={value!r} must increase strictly")
    return result
