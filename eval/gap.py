"""The gap between live episodes and their replay, and its table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.markup import escape
from rich.table import Table

from eval.labels import fold_spec, label_specs
from eval.replay_table import ratio_cell
from eval.statistics import Ratio, throughput_ratio
from policies import Episode

_LABEL_WIDTH = 24

LEGEND = (
    "tok/s without the policy's own time; [low, high]: paired bootstrap over prompts, 95 %, with the seconds "
    "of a step as they were measured: how far those are off is not in it; other accept: live steps that "
    "accept another number of drafts when the same trees are replayed; other tree: steps at which the policy "
    "chooses another tree in the replay, as may one that hashes what it observes (random) or is at a "
    "threshold; other text: live texts that depart from the recorded ones"
)
"""What the columns mean; said once below the table."""


@dataclass(frozen=True)
class Gap:
    """Replay against live decoding, for one policy.

    Attributes:
        policy: Its spec.
        texts: Texts.
        steps: Live steps.
        live_tokens_per_second: Σ tokens / Σ seconds, without the policy's own time.
        replayed_tokens_per_second: The same when the policy chooses in the replay.
        ratio: Replayed over live.
        other_accept: Steps that accept another number of drafts when the live trees are replayed.
        other_tree: Steps whose tree is another one when the policy chooses in the replay.
        other_text: Live texts that depart from the recorded ones.
        first: Prompt and step, from 0, of the first step of ``other_accept``.
    """

    policy: str
    texts: int
    steps: int
    live_tokens_per_second: float
    replayed_tokens_per_second: float
    ratio: Ratio
    other_accept: int
    other_tree: int
    other_text: int
    first: tuple[str, int] | None


def measure_gap(
    policy: str,
    live: Sequence[Episode],
    repeated: Sequence[Episode],
    chosen: Sequence[Episode],
    recorded: Sequence[str],
    samples: int = 10_000,
    seed: int = 0,
) -> Gap:
    """Compare a policy's live episodes with their replay; steps that only one of two texts has differ.

    Args:
        policy: Spec of the policy.
        live: The live episodes.
        repeated: Replays of the same texts with the trees of the live episodes.
        chosen: Replays of the same texts with what the policy chooses there.
        recorded: As many tokens of each recorded text as the live one has.
        samples: Bootstrap resamples.
        seed: Their seed.

    Raises:
        ValueError: When there is no text, or not one of each kind.
    """
    others = [
        (own.prompt_id, step)
        for own, other in zip(live, repeated, strict=True)
        for step in _differing(own, other, "accept_length")
    ]
    live_tokens, live_seconds = _columns(live)
    tokens, seconds = _columns(chosen)
    return Gap(
        policy=policy,
        texts=len(live),
        steps=sum(len(own.steps) for own in live),
        live_tokens_per_second=sum(live_tokens) / sum(live_seconds),
        replayed_tokens_per_second=sum(tokens) / sum(seconds),
        ratio=throughput_ratio(tokens, seconds, live_tokens, live_seconds, samples, seed),
        other_accept=len(others),
        other_tree=sum(
            len(_differing(own, other, "action")) for own, other in zip(live, chosen, strict=True)
        ),
        other_text=sum(own.text != text for own, text in zip(live, recorded, strict=True)),
        first=others[0] if others else None,
    )


def orders(gaps: Sequence[Gap]) -> tuple[list[str], list[str]]:
    """The policies from the fastest to the slowest: live, and replayed."""
    live = sorted(gaps, key=lambda gap: -gap.live_tokens_per_second)
    replayed = sorted(gaps, key=lambda gap: -gap.replayed_tokens_per_second)
    return [gap.policy for gap in live], [gap.policy for gap in replayed]


def gap_table(title: str, gaps: Sequence[Gap]) -> Table:
    """Build the table of a validation.

    Args:
        title: What was validated.
        gaps: One row each.
    """
    table = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    table.add_column("policy", no_wrap=True)
    headers = ("live\ntok/s", "replayed\ntok/s", "replayed ÷\nlive", "steps", "other\naccept", "other\ntree")
    for header in (*headers, "other\ntext"):
        table.add_column(header, justify="right", no_wrap=True)
    labels = label_specs(gap.policy for gap in gaps)
    for gap in gaps:
        table.add_row(
            escape(fold_spec(labels[gap.policy], _LABEL_WIDTH)),
            f"{gap.live_tokens_per_second:.1f}",
            f"{gap.replayed_tokens_per_second:.1f}",
            ratio_cell(gap.ratio),
            str(gap.steps),
            f"{gap.other_accept}\n{gap.other_accept / gap.steps:.1%}",
            f"{gap.other_tree}\n{gap.other_tree / gap.steps:.1%}",
            f"{gap.other_text}/{gap.texts}",
        )
    return table


def _columns(episodes: Sequence[Episode]) -> tuple[list[int], list[float]]:
    return [episode.tokens for episode in episodes], [episode.seconds for episode in episodes]


def _differing(one: Episode, other: Episode, key: str) -> list[int]:
    pairs = itertools.zip_longest(*([getattr(step, key) for step in own.steps] for own in (one, other)))
    return [step for step, (a, b) in enumerate(pairs) if a != b]
