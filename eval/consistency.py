"""Whether the files of a comparison agree with each other: every number is there once as a part of a sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from entmtp_env.text_pieces import common_length
from eval.compare import plain_summaries
from eval.paper_summary import plain_paper, summarise_paper
from eval.stored import StoredResults, StoredRun
from eval.summary import LATER, summarise

_EPISODE = ("tokens", "seconds", "policy_seconds")
_PARTS = tuple(f"{part}_seconds" for part in ("draft", "verify", "accept", "commit", "feature"))
_TIMES = ("seconds", "policy_seconds", *_PARTS)
_SHOWN = 80


def inconsistencies(results: StoredResults) -> list[str]:
    """What contradicts itself; empty when nothing does.

    Steps must add up to their episode, in tokens, times, rewards and text, no step be shorter than its parts,
    no time be negative, and a tree always be the same action; episodes must be those of the manifest, with
    its seeds; the summary must follow from them, of the paper's table its claims, too.

    Args:
        results: A comparison; one that was cut short is checked as far as it goes.
    """
    counts = Counter((step.tree, step.action) for own in results.runs for step in own.run.episode.steps)
    actions = {tree: action for (tree, action), _ in reversed(counts.most_common())}
    found = [f"{own.label}: {problem}" for own in results.runs for problem in _episode(results, own, actions)]
    # What is wrong in an episode is wrong in every sum of it.
    if results.summary is not None and not found:
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
        for name in _TIMES:
            if getattr(step, name) < 0:
                yield f"step {i} has {name} = {getattr(step, name)}, a time is at least 0"
        if step.accept_length < 0 or step.tokens != step.accept_length + 1:
            yield f"step {i} has {step.tokens} tokens with {step.accept_length} accepted, one less is right"
        if (parts := sum(getattr(step, part) for part in _PARTS)) > step.seconds + 1e-9:
            yield f"step {i} took {step.seconds} seconds, its parts {parts}"
        if detail.token_ids and len(detail.token_ids) != step.tokens:
            yield f"step {i} has {len(detail.token_ids)} token ids for {step.tokens} tokens"
    pieces = "".join(detail.text for detail in own.run.details)
    if pieces and pieces != episode.text:
        place = common_length(pieces, episode.text)
        yield f"the text in episodes.jsonl departs from that of the steps at character {place}"
    if episode.prefill_seconds < 0 or episode.seconds <= 0:
        yield f"it took {episode.seconds} seconds, its prefill {episode.prefill_seconds}, which no text can"
        return
    rate, rewards = episode.tokens / episode.seconds, sum(step.reward for step in episode.steps)
    # The environment's clock also counts observations that a policy does not read, its seconds do not.
    observes = any(step.feature_seconds for step in episode.steps)
    if not math.isclose(rate, rewards, rel_tol=1e-6) and (observes or rewards > rate):
        yield f"the rewards add up to {rewards}, tokens per second to {rate}"


def _summary(results: StoredResults, summary: Mapping[str, Any]) -> Iterator[str]:
    """Differences of ``summary.json``; the bootstrap is seeded, so its intervals too must come out again."""
    sets = results.sets()
    for prompts, seeds in results.manifest["prompt_seeds"].items():
        policies = sets.get(prompts, {})
        count = len(seeds.keys() - results.settings.get("exclude", ()))
        short = [policy for policy, runs in policies.items() if len(runs) != count]
        if not policies or short:
            yield f"episodes.jsonl lacks episodes of {prompts}, of which the manifest has {count} prompts"
    yield from _differences("summary.json", summary, _expected_summary(results))


def _expected_summary(results: StoredResults) -> dict[str, Any]:
    """What the command that wrote a comparison makes of its episodes."""
    manifest, settings = results.manifest, results.settings
    numbers = settings["baseline"], settings["bootstrap_samples"], settings["seed"]
    sets = {
        prompts: {policy: [own.run.episode for own in runs] for policy, runs in policies.items()}
        for prompts, policies in results.sets().items()
    }
    if "medusa_environments" not in manifest:
        summaries = {prompts: summarise(policies, *numbers) for prompts, policies in sets.items()}
        return plain_summaries(summaries, settings["baseline"])
    # The rows of the paper's table are in an order of their own.
    tables = {
        prompts: {row: policies[row] for row in settings["policies"]} for prompts, policies in sets.items()
    }
    result = summarise_paper(tables, manifest.get("left_out", {}), *numbers)
    return plain_paper(result, settings["baseline"])


def _differences(where: str, stored: Any, expected: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(stored, dict):
        for key in {**expected, **stored}:
            # Results of an earlier version do not have them.
            if key in stored or key not in LATER:
                yield from _differences(f"{where}, {key}", stored.get(key), expected.get(key))
    elif isinstance(expected, list) and isinstance(stored, list) and len(expected) == len(stored):
        for i, (before, now) in enumerate(zip(stored, expected, strict=True)):
            yield from _differences(f"{where}, {_name(now, i)}", before, now)
    elif isinstance(expected, float) and isinstance(stored, (int, float)):
        if not math.isclose(stored, expected, rel_tol=1e-9):
            yield f"{where}: {stored}, the episodes give {expected}"
    elif stored != expected:
        yield f"{where}: {stored!r:.{_SHOWN}}, the episodes give {expected!r:.{_SHOWN}}"


def _name(row: Any, number: int) -> str:
    """A row's first field tells it from the others: its policy, or the method that a claim is about."""
    return str(next(iter(row.values()))) if isinstance(row, dict) and row else str(number)
