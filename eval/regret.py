"""How far recorded schedules are from the best possible ones on the same texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from eval.statistics import Ratio, throughput_ratio
from eval.stored import StoredRun
from policies.lockstep import Script, replay


@dataclass(frozen=True)
class Regret:
    """One policy's schedules against the oracle's.

    Attributes:
        policy: Its spec, or the single tree that would have been fastest on these texts.
        regret: Time over that of the oracle, both replayed with the same costs; 1 is optimal.
        departing: Texts that are not the recorded ones (rounding, or another model); the schedule is then
            priced on a text that it was not made for.
    """

    policy: str
    regret: Ratio
    departing: int


@dataclass(frozen=True)
class RegretTable:
    """The regrets on one prompt set.

    Attributes:
        texts: Texts that are both in the results and in the recording.
        approximate: Whether texts depend on the schedule (``typical``), so that the replay is approximate.
        rows: The best single tree, then the policies.
    """

    texts: int
    approximate: bool
    rows: Sequence[Regret]


def replayed_regret(
    policies: Mapping[str, Sequence[StoredRun]],
    recordings: Sequence[str],
    costs: str,
    settings: Mapping[str, Any],
) -> RegretTable | None:
    """Replay the recorded trees of a comparison and compare their time with the oracle's.

    Args:
        policies: Episodes by policy, on the same prompts in the same order; a policy with trees of another
            bank than the comparison's is left out.
        recordings: Recordings as :func:`~entmtp_env.replay.shipped.load_recording` takes them.
        costs: Costs as :func:`~entmtp_env.replay.costs.load_costs` takes them.
        settings: Fields of the comparison's command.

    Returns:
        The regrets; ``None`` when no prompt is recorded.

    Raises:
        ValueError: When recording, costs and the comparison's bank, cap or probe do not fit together, or the
            KV cache is so small that a text's length would depend on the schedule.
        FileNotFoundError: When a file is missing.
    """
    recording = load_recording(recordings)
    index = {text.prompt_id: i for i, text in enumerate(recording.texts)}
    runs = {
        policy: [own for own in all_runs if own.run.episode.prompt_id in index]
        for policy, all_runs in policies.items()
    }
    ids = [own.run.episode.prompt_id for own in next(iter(runs.values()))]
    if not ids:
        return None
    keys = ("bank", "max_new_tokens", "features", "probe", "capacity")
    envs = ReplayVectorEnv(
        len(ids), recording=list(recordings), costs=costs, **{key: settings[key] for key in keys}
    )
    texts = np.array([index[prompt_id] for prompt_id in ids])
    envs.tables.check_lengths(texts)
    oracle = solve(envs.tables)
    best, statics = oracle.seconds[texts], oracle.static_seconds[:, texts]
    fastest = int(statics.sum(axis=1).argmin())
    tokens = (envs.tables.ends - envs.tables.starts)[texts]

    def regret(seconds: Any) -> Ratio:
        return throughput_ratio(
            tokens, best, tokens, seconds, settings["bootstrap_samples"], settings["seed"]
        )

    rows = [Regret(f"best single tree: {envs.bank.names[fastest]}", regret(statics[fastest]), 0)]
    for policy, own_runs in runs.items():
        used = {(step.action, step.tree) for own in own_runs for step in own.run.episode.steps}
        if not used <= set(enumerate(envs.bank.names)):
            continue
        script = Script([[step.action for step in own.run.episode.steps] for own in own_runs])
        seconds = [episode.seconds for episode in replay(envs, script, ids).episodes]
        departing = sum(_departs(recording, index[own.run.episode.prompt_id], own) for own in own_runs)
        rows.append(Regret(policy, regret(seconds), departing))
    return RegretTable(len(ids), recording.approximate, rows)


def _departs(recording: Recording, text: int, own: StoredRun) -> bool:
    """Whether a text differs from the recorded one, which may be longer; by its tokens where known."""
    ids = [token for detail in own.run.details for token in detail.token_ids]
    if not ids:
        return not recording.texts[text].text.startswith(own.run.episode.text)
    start = int(recording.offsets[text])
    return recording.tokens[start : start + len(ids)].tolist() != ids
