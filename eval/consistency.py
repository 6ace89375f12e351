"""Whether the files of a comparison agree with each other: every number is there once as a part of a sum."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from entmtp_env.text_pieces import common_length
from eval.stored import StoredResults, StoredRun
from eval.summary import LATER, summarise

_EPISODE = ("tokens", "seconds", "policy_seconds")
_PARTS = tuple(f"{part}_seconds" for part in ("draft", "verify", "accept", "commit", "feature"))


def inconsistencies(results: StoredResults) -> list[str]:
    """What contradicts itself; empty when nothing does.

    Steps must add up to their episode, in tokens, times, rewards and text, no step be shorter than its parts,
    and a tree always be the same action; episodes must be those of the manifest, with its seeds; the summary
    must follow from them.

    Args:
        results: A comparison; one that was cut short is checked as far as it goes.
    """
    counts = Counter((step.tree, step.action) for own in results.runs for step in own.run.episode.steps)
    actions = {tree: action for (tree, action), _ in reversed(counts.most_common())}
    found = [f"{own.label}: {problem}" for own in results.runs for problem in _episode(results, own, actions)]
    if results.summary is not None:
        found += _summary(results, results.summary)
    return found


def _episode(results: StoredResults, own: StoredRun, actions: Mapping[str, int]) -> Iterator[str]:
    episode, totals = own.run.episode, own.totals
    seeds = results.manifest["prompt_seeds"].get(own.prompts, {})
    if episode.prompt_id not in seeds:
        yield "the manifest has no such prompt"
    elif seeds[episode.prompt_id] != own.run.seed:
        yield f"the seed is {own.run.seed} in episodes.jsonl, {seeds[episode.prompt_id]} in the manifest"
    if totals["steps"] != len(episode.steps):
        yield f"episodes.jsonl says {totals['steps']} steps, steps.jsonl has {len(episode.steps)}"
    for key in _EPISODE:
        if not math.isclose(totals[key], getattr(episode, key), rel_tol=1e-9):
            yield f"episodes.jsonl says {key} = {totals[key]}, the steps add up to {getattr(episode, key)}"
    for i, (step, detail) in enumerate(zip(episode.steps, own.run.details, strict=True)):
        if step.action != actions[step.tree]:
            yield f"step {i} has action {step.action} with the tree {step.tree!r}, not {actions[step.tree]}"
        if step.tokens != step.accept_length + 1:
            yield f"step {i} has {step.tokens} tokens with {step.accept_length} accepted, one less is right"
        if (parts := sum(getattr(step, part) for part in _PARTS)) > step.seconds + 1e-9:
            yield f"step {i} took {step.seconds} seconds, its parts {parts}"
        if detail.token_ids and len(detail.token_ids) != step.tokens:
            yield f"step {i} has {len(detail.token_ids)} token ids for {step.tokens} tokens"
    pieces = "".join(detail.text for detail in own.run.details)
    if pieces and pieces != episode.text:
        place = common_length(pieces, episode.text)
        yield f"the text in episodes.jsonl departs from that of the steps at character {place}"
    rate, rewards = episode.tokens / episode.seconds, sum(step.reward for step in episode.steps)
    if not math.isclose(rate, rewards, rel_tol=1e-6):
        yield f"the rewards add up to {rewards}, tokens per second to {rate}"


def _summary(results: StoredResults, summary: Mapping[str, Any]) -> Iterator[str]:
    """Differences of ``summary.json``; the bootstrap is seeded, so its intervals too must come out again."""
    settings = results.settings
    sets = results.sets()
    expected: dict[str, Any] = {
        prompts: {
            row.policy: dataclasses.asdict(row)
            for row in summarise(
                {policy: [own.run.episode for own in runs] for policy, runs in policies.items()},
                settings["baseline"],
                settings["bootstrap_samples"],
                settings["seed"],
            )
        }
        for prompts, policies in sets.items()
    }
    stored = {
        prompts: {row["policy"]: row for row in rows} for prompts, rows in summary.get("sets", {}).items()
    }
    for prompts, rows in stored.items():
        for policy, row in rows.items():
            for name in LATER.difference(row):
                expected.get(prompts, {}).get(policy, {}).pop(name, None)
    for prompts, seeds in results.manifest["prompt_seeds"].items():
        policies = sets.get(prompts, {})
        count = len(seeds.keys() - results.settings.get("exclude", ()))
        short = [policy for policy, runs in policies.items() if len(runs) != count]
        if not policies or short:
            yield f"episodes.jsonl lacks episodes of {prompts}, of which the manifest has {count} prompts"
    yield from _differences("summary.json", stored, expected)


def _differences(where: str, stored: Any, expected: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(stored, dict):
        for key in {**expected, **stored}:
            yield from _differences(f"{where}, {key}", stored.get(key), expected.get(key))
    elif isinstance(expected, float) and isinstance(stored, (int, float)):
        if not math.isclose(stored, expected, rel_tol=1e-9):
            yield f"{where}: {stored}, the episodes give {expected}"
    elif stored != expected:
        yield f"{where}: {stored!r}, the episodes give {expected!r}"
