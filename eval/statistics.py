"""What a comparison says: ratios of sums, with paired bootstrap intervals over prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policies import Episode

FloatArray = npt.NDArray[np.float64]

ENOUGH = 10
"""Prompts below which a bootstrap's interval is so much too narrow that nothing is decided by it."""
REFERENCE = "autoregressive"
"""The policy whose throughput is ρ = 1 and whose texts the others must reproduce."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two throughputs.

    Attributes:
        value: Over all prompts.
        low: Lower end of the 95 % interval; ``None`` with fewer than two prompts.
        high: Upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PolicySummary:
    """One policy on one prompt set.

    Attributes:
        policy: Its spec.
        prompts: Texts generated.
        tokens: Σ tokens.
        steps: Σ decode steps.
        seconds: Σ seconds of decode steps and policy.
        prefill_seconds: Σ seconds of prefill, not part of ``seconds``.
        tokens_per_second: Σ tokens / Σ seconds.
        tokens_per_second_with_prefill: The same with prefill, as the paper counts.
        tau: τ, tokens per step.
        rho: ρ, throughput over that of autoregressive decoding.
        rho_with_prefill: The same with prefill, as the paper counts.
        versus_baseline: Throughput over that of the baseline policy.
        switch_rate: Share of the steps after a text's first whose tree is another than the step's before.
        policy_microseconds: Median time of the decisions of a step.
        policy_share: Share of ``seconds`` spent in the policy.
        draft_share: Share of ``seconds`` spent drafting.
        verify_share: Share of ``seconds`` spent verifying.
        same_texts: Texts equal to those of autoregressive decoding.
        trees: Steps by name of the tree, most frequent first.
    """

    policy: str
    prompts: int
    tokens: int
    steps: int
    seconds: float
    prefill_seconds: float
    tokens_per_second: float
    tokens_per_second_with_prefill: float
    tau: float
    rho: Ratio
    rho_with_prefill: Ratio
    versus_baseline: Ratio
    switch_rate: float
    policy_microseconds: float
    policy_share: float
    draft_share: float
    verify_share: float
    same_texts: int
    trees: dict[str, int]


def throughput_ratio(
    tokens: npt.ArrayLike,
    seconds: npt.ArrayLike,
    reference_tokens: npt.ArrayLike,
    reference_seconds: npt.ArrayLike,
    samples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Ratio of two throughputs, each Σ tokens / Σ seconds, with its paired bootstrap interval.

    Prompts are resampled with replacement, both policies on the same ones, so what makes a prompt slow for
    both cancels. The interval is the 2.5 to 97.5 percentile range (Efron and Tibshirani 1993, chapter 13).

    Args:
        tokens: Tokens per prompt, ``(prompts,)``.
        seconds: Seconds per prompt, ``(prompts,)``.
        reference_tokens: The same of the denominator, prompts in the same order.
        reference_seconds: The same of the denominator.
        samples: Resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: When the four are not of one length, or there is no prompt.
    """
    columns = [
        np.asarray(c, dtype=np.float64) for c in (tokens, seconds, reference_tokens, reference_seconds)
    ]
    n = columns[0].size
    if n == 0 or any(column.shape != (n,) for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise ValueError(
            f"a paired ratio needs four arrays of one length >= 1, one entry a prompt; got {shapes}"
        )
    table = np.stack(columns, axis=1)
    value = float(_ratio(table.sum(axis=0)))
    if n < 2:
        return Ratio(value)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=samples)
    low, high = np.percentile(_ratio(counts @ table), (2.5, 97.5))
    return Ratio(value, float(low), float(high))


def _ratio(sums: FloatArray) -> FloatArray:
    """(tokens / seconds) / (reference tokens / reference seconds) along the last axis."""
    tokens, seconds, reference_tokens, reference_seconds = np.moveaxis(sums, -1, 0)
    ratio: FloatArray = (tokens * reference_seconds) / (seconds * reference_tokens)
    return ratio


def summarise(
    episodes: Mapping[str, Sequence[Episode]], baseline: str, samples: int = 10_000, seed: int = 0
) -> list[PolicySummary]:
    """Summarise the policies of one prompt set.

    Args:
        episodes: Episodes by policy, prompts in the same order for all; ``autoregressive`` and the baseline
            are among the policies.
        baseline: The policy that ``versus_baseline`` divides by.
        samples: Bootstrap resamples.
        seed: Their seed; every ratio sees the same resamples.

    Returns:
        One summary per policy, in the order of ``episodes``.

    Raises:
        ValueError: When the policies did not run the same prompts in the same order, or a policy to divide by
            is missing.
    """
    missing = {REFERENCE, baseline} - episodes.keys()
    if missing:
        raise ValueError(
            f"no episodes of {', '.join(sorted(missing))}, which others are divided by; run it too"
        )
    reference = episodes[REFERENCE]
    prompts = [episode.prompt_id for episode in reference]
    for policy, own in episodes.items():
        if [episode.prompt_id for episode in own] != prompts:
            raise ValueError(
                f"{policy!r} and {REFERENCE!r} ran different prompts; a paired comparison needs the same"
            )

    def ratio(own: Sequence[Episode], other: Sequence[Episode], with_prefill: bool = False) -> Ratio:
        return throughput_ratio(
            *_tokens_and_seconds(own, with_prefill), *_tokens_and_seconds(other, with_prefill), samples, seed
        )

    return [
        _summary(
            policy,
            own,
            rho=ratio(own, reference),
            rho_with_prefill=ratio(own, reference, with_prefill=True),
            versus_baseline=ratio(own, episodes[baseline]),
            same_texts=sum(a.text == b.text for a, b in zip(own, reference, strict=True)),
        )
        for policy, own in episodes.items()
    ]


def _tokens_and_seconds(episodes: Sequence[Episode], with_prefill: bool) -> tuple[list[int], list[float]]:
    return (
        [episode.tokens for episode in episodes],
        [e.seconds + e.policy_seconds + with_prefill * e.prefill_seconds for e in episodes],
    )


def _summary(
    policy: str,
    episodes: Sequence[Episode],
    rho: Ratio,
    rho_with_prefill: Ratio,
    versus_baseline: Ratio,
    same_texts: int,
) -> PolicySummary:
    steps = [step for episode in episodes for step in episode.steps]
    tokens = sum(episode.tokens for episode in episodes)
    policy_seconds = sum(episode.policy_seconds for episode in episodes)
    seconds = sum(episode.seconds for episode in episodes) + policy_seconds
    prefill = sum(episode.prefill_seconds for episode in episodes)
    decisions_to_switch = len(steps) - len(episodes)
    return PolicySummary(
        policy=policy,
        prompts=len(episodes),
        tokens=tokens,
        steps=len(steps),
        seconds=seconds,
        prefill_seconds=prefill,
        tokens_per_second=tokens / seconds,
        tokens_per_second_with_prefill=tokens / (seconds + prefill),
        tau=tokens / len(steps),
        rho=rho,
        rho_with_prefill=rho_with_prefill,
        versus_baseline=versus_baseline,
        switch_rate=sum(e.switches for e in episodes) / decisions_to_switch if decisions_to_switch else 0.0,
        policy_microseconds=1e6 * float(np.median([step.policy_seconds for step in steps])),
        policy_share=policy_seconds / seconds,
        draft_share=sum(step.draft_seconds for step in steps) / seconds,
        verify_share=sum(step.verify_seconds for step in steps) / seconds,
        same_texts=same_texts,
        trees=dict(Counter(step.tree for step in steps).most_common()),
    )
