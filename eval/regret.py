"""How far recorded schedules are from the best possible ones on the same texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import load_bank
from eval.statistics import Ratio, throughput_ratio
from eval.stored import StoredRun


@dataclass(frozen=True)
class Regret:
    """One policy's schedules against the oracle's.

    Attributes:
        policy: Its spec, or the single tree that would have been fastest on these texts.
        regret: Time over that of the oracle, both by the same costs; 1 is optimal. ``None`` when no text came
            out under every policy.
        departing: Texts that are not the recorded ones, by rounding or as the rule depends on the trees.
    """

    policy: str
    regret: Ratio | None
    departing: int


@dataclass(frozen=True)
class RegretTable:
    """The regrets on one prompt set.

    Attributes:
        texts: Texts whose prompts are both in the results and in the recording.
        same: Those of them that came out as recorded under every policy: the schedules are priced on these.
        approximate: Whether texts depend on the schedule (``typical``), so that acceptance is approximate.
        rows: The best single tree, when a text is left to tell it by, then the policies.
    """

    texts: int
    same: int
    approximate: bool
    rows: Sequence[Regret]


def replayed_regret(
    policies: Mapping[str, Sequence[StoredRun]],
    recordings: Sequence[str],
    costs: str,
    settings: Mapping[str, Any],
    environments: Iterable[Mapping[str, Any]],
) -> RegretTable | None:
    """Price the schedules of a comparison and compare their time with the oracle's.

    A schedule is made for its own text: on another, its trees would accept something else and run out too
    early or too late. So only texts count that every policy wrote as they are recorded.

    Args:
        policies: Episodes by policy, on the same prompts in the same order; a policy with trees of another
            bank than the comparison's is left out.
        recordings: Recordings as :func:`~entmtp_env.replay.shipped.load_recording` takes them.
        costs: Costs as :func:`~entmtp_env.replay.costs.load_costs` takes them.
        settings: Fields of the comparison's command.
        environments: Manifests of its environments.

    Returns:
        The regrets; ``None`` when no prompt is recorded.

    Raises:
        ValueError: When the recording is of another model, heads or acceptance rule than the comparison; when
            recording, costs and the comparison's bank, cap or probe do not fit together, or the KV cache is
            so small that a text's length would depend on the schedule.
        FileNotFoundError: When a file is missing.
    """
    recording = load_recording(recordings)
    index = {text.prompt_id: i for i, text in enumerate(recording.texts)}
    runs = {
        policy: [own for own in all_runs if own.run.episode.prompt_id in index]
        for policy, all_runs in policies.items()
    }
    texts = np.array([index[own.run.episode.prompt_id] for own in next(iter(runs.values()))], dtype=np.int64)
    if not len(texts):
        return None
    for environment in environments:
        recording.check_origin(environment, "the comparison")
    bank = load_bank(settings["bank"])
    limits = {key: settings[key] for key in ("max_new_tokens", "capacity", "probe")}
    tables = ReplayTables.build(recording, load_costs(costs), bank, **limits)
    tables.check_lengths(texts)
    trees = set(enumerate(bank.names))
    runs = {
        policy: own_runs
        for policy, own_runs in runs.items()
        if {(step.action, step.tree) for own in own_runs for step in own.run.episode.steps} <= trees
    }
    departing = {
        policy: np.array([_departs(tables, text, own) for text, own in zip(texts, own_runs, strict=True)])
        for policy, own_runs in runs.items()
    }
    same = ~np.logical_or.reduce([*departing.values(), np.zeros(len(texts), dtype=np.bool_)])
    if not same.any():
        rows = [Regret(policy, None, int(own.sum())) for policy, own in departing.items()]
        return RegretTable(len(texts), 0, recording.approximate, rows)
    priced, oracle = texts[same], solve(tables)
    best, statics = oracle.seconds[priced], oracle.static_seconds[:, priced]
    tokens = (tables.ends - tables.starts)[priced]

    def regret(seconds: Any) -> Ratio:
        return throughput_ratio(
            tokens, best, tokens, seconds, settings["bootstrap_samples"], settings["seed"]
        )

    fastest = int(statics.sum(axis=1).argmin())
    rows = [Regret(f"best single tree: {bank.names[fastest]}", regret(statics[fastest]), 0)]
    for policy, own_runs in runs.items():
        pairs = zip(texts, own_runs, same, strict=True)
        seconds = [_seconds(tables, text, own) for text, own, counts in pairs if counts]
        rows.append(Regret(policy, regret(seconds), int(departing[policy].sum())))
    return RegretTable(len(texts), len(priced), recording.approximate, rows)


def _departs(tables: ReplayTables, text: int, own: StoredRun) -> bool:
    """Whether a text differs from the recorded one up to the cap; by its tokens where known."""
    start, end = int(tables.starts[text]), int(tables.ends[text])
    if own.run.episode.tokens != end - start:
        return True
    ids = [token for detail in own.run.details for token in detail.token_ids]
    if not ids:
        return not tables.recording.texts[text].text.startswith(own.run.episode.text)
    return tables.recording.tokens[start:end].tolist() != ids


def _seconds(tables: ReplayTables, text: int, own: StoredRun) -> float:
    """What the steps of a text cost where they were taken."""
    steps = own.run.episode.steps
    rows = tables.starts[text] + np.cumsum([0, *(step.tokens for step in steps[:-1])])
    return float(tables.costs.seconds[[step.action for step in steps], tables.contexts[rows]].sum())
