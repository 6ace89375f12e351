"""What the paper's table comes to: rows by the paper's names, and its claims."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.compare import plain_summaries
from eval.medusa_row import MEDUSA
from eval.paper_claims import Claim, check_claims
from eval.paper_numbers import PAPER
from eval.statistics import REFERENCE
from eval.summary import PolicySummary, summarise
from policies import Episode

HYDRA = "hydra-default"
"""The row of the paper's Hydra."""

_METHODS = {
    REFERENCE: "Vanilla",
    MEDUSA: "Medusa",
    HYDRA: "Hydra",
    "static": "EntMTP*",
    "threshold": "EntMTP^τ",
    "ladder": "EntMTP-l",
}
_CALIBRATED = ("static", "threshold", "ladder")


@dataclass(frozen=True)
class PaperResult:
    """What came out.

    Attributes:
        summaries: Rows by prompt set.
        claims: The paper's claims by prompt set.
        left_out: Reason by what did not run: a prompt set, or the row of Medusa.
    """

    summaries: Mapping[str, list[PolicySummary]]
    claims: Mapping[str, list[Claim]]
    left_out: Mapping[str, str]


def task_name(prompts: str) -> str:
    """Name of the task of a prompt set: ``gsm8k`` of ``gsm8k@test.parquet:evaluation``, or a file's stem."""
    return Path(re.split(r"@|:(?=calibration$|evaluation$)", prompts)[0]).stem


def method(row: str) -> str:
    """The paper's name of a row; empty when it has none, as a scheduler that was not calibrated."""
    name = re.split("[:@]", row)[0]
    return "" if name in _CALIBRATED and "@" not in row else _METHODS.get(name, "")


def summarise_paper(
    sets: Mapping[str, Mapping[str, Sequence[Episode]]],
    left_out: Mapping[str, str],
    baseline: str,
    samples: int,
    seed: int,
) -> PaperResult:
    """Summarise the table.

    Args:
        sets: Episodes by prompt set and row; of several rows of one method, the first stands for it.
        left_out: Reason by what did not run.
        baseline: The row that the others are divided by.
        samples: Bootstrap resamples.
        seed: Their seed.
    """
    summaries, claims = {}, {}
    for prompts, rows in sets.items():
        summaries[prompts] = summarise(rows, baseline, samples, seed)
        methods = {method(row): episodes for row, episodes in reversed(list(rows.items()))}
        claims[prompts] = check_claims(task_name(prompts), methods, samples, seed)
    return PaperResult(summaries, claims, left_out)


def plain_paper(result: PaperResult, baseline: str) -> dict[str, Any]:
    """What :func:`summarise_paper` found, as plain JSON values."""
    return plain_summaries(result.summaries, baseline) | {
        "methods": {row.policy: method(row.policy) for rows in result.summaries.values() for row in rows},
        "paper": {
            prompts: {name: dataclasses.asdict(own) for name, own in PAPER[task_name(prompts)].items()}
            for prompts in result.summaries
            if task_name(prompts) in PAPER
        },
        "claims": {
            prompts: [dataclasses.asdict(claim) | {"verdict": claim.verdict} for claim in claims]
            for prompts, claims in result.claims.items()
        },
        "left_out": dict(result.left_out),
    }
