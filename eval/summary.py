"""What a comparison says of each policy: one summary a policy and prompt set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.statistics import REFERENCE, Ratio, improvement, interquartile_ratio, throughput_ratio
from policies import Episode

LATER = frozenset({"versus_baseline_with_prefill", "interquartile_ratio", "improvement"})
"""Fields that summaries of an earlier version do not have."""


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
        versus_baseline_with_prefill: The same with prefill, as the paper counts.
        interquartile_ratio: Interquartile mean over prompts of a prompt's throughput over the baseline's.
        improvement: Probability that it is faster than the baseline on a prompt; a tie counts half.
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
    versus_baseline_with_prefill: Ratio
    interquartile_ratio: Ratio
    improvement: Ratio
    switch_rate: float
    policy_microseconds: float
    policy_share: float
    draft_share: float
    verify_share: float
    same_texts: int
    trees: dict[str, int]


def summarise(
    episodes: Mapping[str, Sequence[Episode]], baseline: str, samples: int = 10_000, seed: int = 0
) -> list[PolicySummary]:
    """Summarise the policies of one prompt set.

    Args:
        episodes: Episodes by policy, prompts in the same order for all; ``autoregressive`` and the baseline
            are among the policies.
        baseline: The policy that the others are compared with.
        samples: Bootstrap resamples.
        seed: Their seed; all statistics see the same resamples.

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

    def compared(
        statistic: Callable[..., Ratio],
        own: Sequence[Episode],
        other: Sequence[Episode],
        prefill: bool = False,
    ) -> Ratio:
        columns = *_tokens_and_seconds(own, prefill), *_tokens_and_seconds(other, prefill)
        return statistic(*columns, samples, seed)

    divisor = episodes[baseline]
    return [
        _summary(
            policy,
            own,
            rho=compared(throughput_ratio, own, reference),
            rho_with_prefill=compared(throughput_ratio, own, reference, prefill=True),
            versus_baseline=compared(throughput_ratio, own, divisor),
            versus_baseline_with_prefill=compared(throughput_ratio, own, divisor, prefill=True),
            interquartile_ratio=compared(interquartile_ratio, own, divisor),
            improvement=compared(improvement, own, divisor),
            same_texts=sum(a.text == b.text for a, b in zip(own, reference, strict=True)),
        )
        for policy, own in episodes.items()
    ]


def _tokens_and_seconds(episodes: Sequence[Episode], with_prefill: bool) -> tuple[list[int], list[float]]:
    return (
        [episode.tokens for episode in episodes],
        [e.seconds + e.policy_seconds + with_prefill * e.prefill_seconds for e in episodes],
    )


def _summary(policy: str, episodes: Sequence[Episode], **compared: Any) -> PolicySummary:
    """The summary of one policy, with the fields that come of a comparison as they are given."""
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
        switch_rate=sum(e.switches for e in episodes) / decisions_to_switch if decisions_to_switch else 0.0,
        policy_microseconds=1e6 * float(np.median([step.policy_seconds for step in steps])),
        policy_share=policy_seconds / seconds,
        draft_share=sum(step.draft_seconds for step in steps) / seconds,
        verify_share=sum(step.verify_seconds for step in steps) / seconds,
        trees=dict(Counter(step.tree for step in steps).most_common()),
        **compared,
    )
