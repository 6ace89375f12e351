"""Rendering a text for a terminal: one colour per step, by how many drafts were accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from entmtp_env.decoding.session import Step
from entmtp_env.text_pieces import text_pieces

# 256-colour codes from grey (nothing accepted) to green (four drafts and more).
_COLOURS = (245, 137, 178, 148, 46)
_RESET = "\x1b[0m"


def render_ansi(
    decode: Callable[[list[int]], str], steps: Sequence[Step], tree: str, tokens: int, seconds: float
) -> str:
    """A text with ANSI colours and a status line.

    Args:
        decode: Text of token ids.
        steps: The decode steps so far.
        tree: Name of the last tree.
        tokens: Tokens so far.
        seconds: Seconds so far.
    """
    ids = [step.tokens for step in steps]
    pieces = text_pieces(decode, ids, decode(list(chain(*ids))))
    parts = [
        f"\x1b[38;5;{_COLOURS[min(step.accept_length, len(_COLOURS) - 1)]}m{piece}"
        for step, piece in zip(steps, pieces, strict=True)
    ]
    rate = tokens / seconds if seconds else 0.0
    legend = " ".join(f"\x1b[38;5;{colour}m{n}{_RESET}" for n, colour in enumerate(_COLOURS))
    status = f"[tree {tree or '-'} | {tokens} tokens | {rate:.1f} tok/s | accepted: {legend}]"
    return "".join(parts) + f"{_RESET}\n{status}"
