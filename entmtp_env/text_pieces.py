"""A text cut into what each decode step added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise


def text_pieces(decode: Callable[[list[int]], str], steps: Sequence[Sequence[int]], text: str) -> list[str]:
    """Cut a text into what each step added; the pieces joined are the text.

    A character that several steps make up belongs to the last of them.

    Args:
        decode: Text of token ids.
        steps: Token ids of each step.
        text: The whole text; empty when there are no steps.
    """
    ids: list[int] = []
    cuts = [0]
    for step in steps[:-1]:
        ids += step
        cuts.append(max(cuts[-1], common_length(decode(ids), text)))
    return [text[begin:end] for begin, end in pairwise([*cuts, len(text)])][: len(steps)]


def common_length(one: str, other: str) -> int:
    """Characters until two strings part, or the shorter one ends."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
