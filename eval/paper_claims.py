"""The paper's claims about speed, each as a ratio measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.paper_numbers import PAPER
from eval.statistics import ENOUGH, Ratio, throughput_ratio
from policies import Episode

CLAIMS = (("Hydra", "Medusa"), ("EntMTP*", "Hydra"), ("EntMTP^τ", "EntMTP*"))
"""The first is at least as fast as the second, says the paper of each of its three tasks."""


@dataclass(frozen=True)
class Claim:
    """One method against another, on one task.

    Attributes:
        faster: The method that the paper found faster.
        slower: The other.
        ratio: Throughput of the first over the second, prefill included.
        reported: The paper's; ``None`` for a task that it does not report.
        prompts: How many it was measured on.
    """

    faster: str
    slower: str
    ratio: Ratio
    reported: float | None
    prompts: int

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold``, or ``undecided``: 1 in the interval, or too few prompts for one."""
        if self.ratio.low is None or self.ratio.high is None or self.prompts < ENOUGH:
            return "undecided"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "undecided"
        return "holds" if self.ratio.low > 1 else "does not hold"


def check_claims(task: str, methods: Mapping[str, Sequence[Episode]], samples: int, seed: int) -> list[Claim]:
    """Measure the claims whose two methods ran.

    Args:
        task: Name of the task.
        methods: Episodes by the paper's name of the method, prompts in one order.
        samples: Bootstrap resamples.
        seed: Their seed.
    """
    reported = PAPER.get(task, {})
    claims = []
    for faster, slower in CLAIMS:
        if faster in methods and slower in methods:
            ratio = throughput_ratio(*_columns(methods[faster]), *_columns(methods[slower]), samples, seed)
            theirs = (
                reported[faster].tokens_per_second / reported[slower].tokens_per_second if reported else None
            )
            claims.append(Claim(faster, slower, ratio, theirs, len(methods[faster])))
    return claims


def _columns(episodes: Sequence[Episode]) -> tuple[list[int], list[float]]:
    return (
        [episode.tokens for episode in episodes],
        [episode.seconds + episode.policy_seconds + episode.prefill_seconds for episode in episodes],
    )
