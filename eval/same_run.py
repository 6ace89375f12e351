"""Whether a run came out again: step by step, in all that is no time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from eval.interleave import Run

_EXACT = ("tree", "deeper", "accept_length", "tokens")
_DETAILS = ("token_ids", "text", "parents")


def told(runs: Iterable[Run]) -> Sequence[str]:
    """Names of the details and scores that any step of some runs has.

    An environment tells a detail of all its steps or of none, so where one has it, none may lack it.
    """
    details = [detail for run in runs for detail in run.details]
    known = [key for key in _DETAILS if any(getattr(detail, key) for detail in details)]
    return [*known, *dict.fromkeys(name for detail in details for name in detail.scores)]


def first_difference(recorded: Run, live: Run, score_tolerance: float, details: Sequence[str]) -> str:
    """The first thing in which two runs differ, times aside, in words; empty when there is none.

    Args:
        recorded: The run on disk.
        live: Its repetition.
        score_tolerance: How far a score may be off; scores come last.
        details: What to compare of tokens, texts, trees and scores, as :func:`told` names it.
    """
    steps = zip(recorded.episode.steps, live.episode.steps, strict=False)
    pairs = list(zip(recorded.details, live.details, strict=False))
    for i, ((old, new), (then, now)) in enumerate(zip(steps, pairs, strict=True)):
        exact = [(key, getattr(old, key), getattr(new, key)) for key in _EXACT]
        exact += [(key, getattr(then, key), getattr(now, key)) for key in _DETAILS if key in details]
        for key, before, after in exact:
            if before != after:
                return f"step {i}: {key} {before!r} recorded, {after!r} live"
    counts = [len(run.episode.steps) for run in (recorded, live)]
    if counts[0] != counts[1]:
        return f"{counts[0]} steps recorded, {counts[1]} live"
    for key in ("finish_reason", "text"):
        before, after = getattr(recorded.episode, key), getattr(live.episode, key)
        if before != after:
            return f"{key} {before!r} recorded, {after!r} live"
    for i, (then, now) in enumerate(pairs):
        for name in details:
            if name not in _DETAILS:
                score, again = then.scores.get(name, math.nan), now.scores.get(name, math.nan)
                if not abs(score - again) <= score_tolerance:
                    return f"step {i}: {name} {score} recorded, {again} live"
    return ""
