"""What the report says about one prompt set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.charts import Histogram, Scale, Scatter, histogram, scatter
from eval.page import trace_data
from eval.regret import RegretTable, replayed_regret
from eval.statistics import REFERENCE, Ratio, throughput_ratio
from eval.stored import StoredRun
from eval.summary import PolicySummary, summarise
from eval.watch import SCORES

ACCEPTED = ("0 accepted", "1", "2", "3", "4 or more")
"""Groups of the histograms."""

_PHASES = {
    "draft": "draft_seconds",
    "verify": "verify_seconds",
    "accept": "accept_seconds",
    "commit": "commit_seconds",
    "features": "feature_seconds",
}
"""Parts of a step's seconds, as far as environments tell; the policy's time comes on top."""


@dataclass(frozen=True)
class Split:
    """Where a policy's time goes.

    Attributes:
        policy: Its spec.
        milliseconds: Milliseconds per token by phase; ``rest`` is what no phase covers.
    """

    policy: str
    milliseconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Milliseconds per token."""
        return sum(self.milliseconds.values())


@dataclass(frozen=True)
class SetSection:
    """One prompt set.

    Attributes:
        name: The set.
        rows: Statistics by policy.
        speeds: Tokens per second by policy, with their intervals.
        taus: Tokens per step by policy, with their intervals.
        rho_axis: Axis of the small interval plots of ρ.
        pareto: Tokens per second against tokens per step.
        histograms: Scores by accepted drafts; none when no score was observed.
        splits: Time by phase.
        regret: Against the oracle, when a recording has the prompts.
        trace: What the script draws, as JSON-ready values.
    """

    name: str
    rows: Sequence[PolicySummary]
    speeds: Sequence[Ratio]
    taus: Sequence[Ratio]
    rho_axis: Scale
    pareto: Scatter
    histograms: Sequence[Histogram]
    splits: Sequence[Split]
    regret: RegretTable | None
    trace: Mapping[str, Any]

    @property
    def best(self) -> PolicySummary:
        """The policy with the most tokens per second."""
        return max(self.rows, key=lambda row: row.tokens_per_second)


def make_section(
    name: str,
    policies: Mapping[str, Sequence[StoredRun]],
    manifest: Mapping[str, Any],
    colours: Mapping[str, str],
    recordings: Sequence[str],
    costs: str,
) -> SetSection:
    """Compute everything about one prompt set.

    Args:
        name: The set.
        policies: Episodes by policy, on the same prompts in the same order.
        manifest: That of the comparison.
        colours: Colour by tree.
        recordings: Recordings to measure regret on; may be empty.
        costs: Costs of the replay.

    Raises:
        ValueError: When recording and comparison do not fit together.
        FileNotFoundError: When a recording or cost table is missing.
    """
    settings = manifest["settings"]
    samples, seed = settings["bootstrap_samples"], settings["seed"]
    environments = manifest["environments"].get(name, {}).values()
    episodes = {policy: [own.run.episode for own in runs] for policy, runs in policies.items()}
    rows = summarise(episodes, settings["baseline"], samples, seed)
    ones = np.ones(rows[0].prompts)
    speeds, taus = [], []
    for own in episodes.values():
        tokens = [episode.tokens for episode in own]
        seconds = [episode.seconds + episode.policy_seconds for episode in own]
        # A throughput is its ratio to one token per second.
        speeds.append(throughput_ratio(tokens, seconds, ones, ones, samples, seed))
        taus.append(throughput_ratio(tokens, [len(e.steps) for e in own], ones, ones, samples, seed))
    points = [
        (str(i), f"{row.policy}: {row.tokens_per_second:.1f} tok/s, τ = {row.tau:.2f}", tau, speed)
        for i, (row, tau, speed) in enumerate(zip(rows, taus, speeds, strict=True), start=1)
    ]
    top = max(row.rho.high or row.rho.value for row in rows)
    return SetSection(
        name=name,
        rows=rows,
        speeds=speeds,
        taus=taus,
        rho_axis=Scale(0, max(1.0, top) * 1.05, 2, 118),
        pareto=scatter(points),
        histograms=_histograms(policies),
        splits=_splits(policies),
        regret=replayed_regret(policies, recordings, costs, settings, environments) if recordings else None,
        trace=trace_data({policy: [own.run for own in runs] for policy, runs in policies.items()}, colours),
    )


def _histograms(policies: Mapping[str, Sequence[StoredRun]]) -> list[Histogram]:
    """Scores before the steps of all policies that draft."""
    pairs = [
        (step.accept_length, detail.scores)
        for policy, runs in policies.items()
        if policy != REFERENCE
        for own in runs
        for step, detail in zip(own.run.episode.steps, own.run.details, strict=True)
    ]
    found = []
    for name in SCORES:
        seen = [(accepted, scores[name]) for accepted, scores in pairs if name in scores]
        if seen:
            groups = np.minimum([accepted for accepted, _ in seen], len(ACCEPTED) - 1)
            values = np.array([score for _, score in seen], dtype=np.float64)
            found.append(histogram(name, values, groups.astype(np.int64), ACCEPTED))
    return found


def _splits(policies: Mapping[str, Sequence[StoredRun]]) -> list[Split]:
    """The splits, without what no policy's steps tell."""
    spent = {policy: _milliseconds(runs) for policy, runs in policies.items()}
    known = [phase for phase in (*_PHASES, "rest", "policy") if any(own[phase] for own in spent.values())]
    return [Split(policy, {phase: own[phase] for phase in known}) for policy, own in spent.items()]


def _milliseconds(runs: Sequence[StoredRun]) -> dict[str, float]:
    """Per token, by phase."""
    steps = [step for own in runs for step in own.run.episode.steps]
    tokens = sum(step.tokens for step in steps)
    seconds = {phase: sum(getattr(step, key) for step in steps) for phase, key in _PHASES.items()}
    seconds["rest"] = max(0.0, sum(step.seconds for step in steps) - sum(seconds.values()))
    seconds["policy"] = sum(step.policy_seconds for step in steps)
    return {phase: 1e3 * spent / tokens for phase, spent in seconds.items()}
