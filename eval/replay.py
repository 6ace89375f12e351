"""``python -m eval replay``: policies side by side on recorded texts, and the best possible schedule."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.files import write_text_atomically
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import check_probe, load_costs
from entmtp_env.replay.lockstep import LockstepReplay
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.staged_oracle import solve_staged
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv
from eval.interleave import Run
from eval.replay_table import (
    HYDRA,
    LEGEND,
    ORACLE,
    STAGED_ORACLE,
    ReplayedSet,
    ReplayRow,
    headroom_table,
    replay_table,
)
from eval.results import ResultFolder, episode_line
from eval.statistics import REFERENCE, throughput_ratio
from eval.summary import summarise
from policies import Episode
from policies.lockstep import Replayed, Script
from policies.lockstep import replay as replay_texts
from policies.registry import make_named_policy, policy_env_id, policy_settings
from policies.staged import StagedThreshold

_SEED = 0
"""Of every episode's reset: a recorded text draws nothing."""


@dataclass(frozen=True)
class Replay:
    """Compare policies on recorded texts, priced by a cost table; no model is needed.

    Prints a table per recording: tokens per second, ρ = speed-up over autoregressive decoding, τ = tokens per
    step, the ratio to the best single tree and the regret = time over that of the best possible schedule,
    with paired bootstrap 95 % intervals over prompts, and the gap, the share of the time between the best
    single tree and that schedule that is saved; then how much there is to win on each. Writes episodes.jsonl,
    summary.json and manifest.json (docs/RESULT_FILES.md).

    With --drafts, policies that decide after every drafted depth (staged-threshold, eagle2, ...) run beside
    those of the bank, on the same texts; their regret and gap are those to the best possible decisions in
    stages. All costs are then by the formula fitted to a measured table, since it has not their trees, or by
    interpolated:<table>.

    Example: python -m eval replay --recordings chat math --policies threshold:on=0.7 ema-ladder

    Attributes:
        recordings: Recordings, each with its own results: a shipped one or an .npz file, or half of one, as
            in chat:evaluation.
        policies: Policies to compare: name, name:key=value,..., static:<tree>, name@file.json, or your own
            package.module:Class. Autoregressive decoding, hydra-default, the best single tree and the oracle
            are added.
        costs: Seconds of a step: auto, a shipped cost table, a JSON file, interpolated:<one of these>, or
            analytic:base=B,node=N,depth=D.
        bank: Bank of trees: default, smollm2-pooled or another that ships, or a JSON file.
        drafts: Staged drafts of all the recordings, written by "train stages".
        stages: With drafts: default, or a JSON file.
        max_new_tokens: Cap on the tokens of a text; by default that of the recording.
        probe: What is drafted before a decision: none, first, chain or union; the costs must be of the same,
            and a policy's file may name its own.
        features: Feature groups to observe, separated by commas, or all; a policy whose file names its own
            observes those.
        capacity: Rows of the KV cache.
        seed: Seed of the bootstrap.
        bootstrap_samples: Resamples behind an interval.
        out: Result folder; by default runs/replay-<date>-<time>.
        overwrite: Replace results that are in the folder already.
    """

    recordings: tuple[str, ...] = (
        "chat:evaluation",
        "math:evaluation",
        "stories:evaluation",
        "humaneval:evaluation",
    )
    policies: tuple[str, ...] = ("threshold", "ladder", "ema-ladder", "random")
    costs: str = "auto"
    bank: str = "default"
    drafts: tuple[str, ...] = ()
    stages: str = "default"
    max_new_tokens: int | None = None
    probe: Probe = "none"
    features: str = "all"
    capacity: int = 2048
    seed: int = 0
    bootstrap_samples: int = 10_000
    out: Path | None = None
    overwrite: bool = False


def replay(config: Replay) -> dict[str, ReplayedSet]:
    """Run a comparison, print its tables and write its files.

    Returns:
        Results by recording.

    Raises:
        ValueError: When a setting is out of range or unknown, recording, costs and bank do not fit together,
            or the KV cache is so small that a text's length would depend on the schedule.
        FileNotFoundError: When a file is missing.
        FileExistsError: When the result folder holds results already.
        RuntimeError: When a policy raised; it names the policy and is chained to the cause.
    """
    for name, least in (("seed", 0), ("bootstrap_samples", 1)):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if config.stages != "default" and not config.drafts:
        raise ValueError(f"stages={config.stages!r} would have no effect without drafts")
    if not config.recordings:
        raise ValueError("no recording: pass one or more to recordings, such as chat:evaluation")
    out = config.out or Path("runs") / f"replay-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ResultFolder(out, config.overwrite)
    sets, environments, lines = {}, {}, []
    with progress_bar() as bar:
        for name in bar.track(dict.fromkeys(config.recordings), description="replaying"):
            envs = _make_envs(config, name)
            staged = _make_staged(_in_stages(config), name) if config.drafts else None
            sets[name], episodes = _run(config, name, envs, staged)
            environments[name] = envs.manifest
            lines += [
                episode_line(name, Run(spec, _SEED, episode))
                for spec, own in episodes.items()
                for episode in own
            ]
    costs = load_costs(_costs(config))
    manifest = describe_run() | {
        "settings": dataclasses.asdict(config) | {"out": config.out and str(config.out)},
        "environments": environments,
        "costs": costs.manifest | {"name": costs.name},
    }
    folder.clear()
    folder.write_json("manifest.json", manifest)
    write_text_atomically(out / "episodes.jsonl", "".join(lines))
    plain = {name: dataclasses.asdict(own) for name, own in sets.items()}
    folder.write_json("summary.json", {"reference": REFERENCE, "oracle": ORACLE, "sets": plain})
    _print(sets, costs.name, out)
    return sets


def _in_stages(config: Replay) -> Replay:
    """The settings of staged rows: their feature groups are others, and drafting is what they decide."""
    return dataclasses.replace(config, features="all", probe="none")


def _make_envs(config: Replay, name: str) -> ReplayVectorEnv:
    envs = ReplayVectorEnv(
        num_envs=None,
        recording=name,
        costs=_costs(config),
        bank=config.bank,
        max_new_tokens=config.max_new_tokens,
        features=config.features,
        probe=config.probe,
        capacity=config.capacity,
    )
    envs.tables.check_lengths()
    return envs


def _make_staged(config: Replay, name: str) -> StagedReplayVectorEnv:
    envs = StagedReplayVectorEnv(
        num_envs=None,
        recording=name,
        drafts=config.drafts,
        stages=config.stages,
        costs=_costs(config),
        max_new_tokens=config.max_new_tokens,
        features=config.features,
        capacity=config.capacity,
    )
    envs.tables.check_lengths()
    return envs


def _costs(config: Replay) -> str:
    """With stages, the formula for all policies, or another way to price any tree."""
    if not config.drafts or config.costs.startswith(("analytic", "interpolated:")):
        return config.costs
    # A formula serves any probe; the table must be of the bank's, and of none for the stages.
    for probe in (config.probe, "none"):
        check_probe(load_costs(config.costs), probe)
    return f"analytic:{config.costs}"


def _run(
    config: Replay, name: str, envs: ReplayVectorEnv, staged: StagedReplayVectorEnv | None
) -> tuple[ReplayedSet, dict[str, tuple[Episode, ...]]]:
    """One recording's results, and its episodes by policy."""
    best = envs.bank.names[solve(envs.tables).best_static]
    best = best if best in (REFERENCE, HYDRA) else f"static:{best}"
    default = [HYDRA] if HYDRA in envs.bank.names else []
    specs = dict.fromkeys((REFERENCE, *default, best, *config.policies, ORACLE))
    in_stages = {spec for spec in specs if policy_env_id(spec) == StagedThreshold.env_id}
    if in_stages and staged is None:
        raise ValueError(f"{', '.join(sorted(in_stages))}: staged policies need drafts; name --drafts")
    made: dict[tuple[bool, Replay], LockstepReplay] = {(False, config): envs}
    if staged is not None:
        made[True, _in_stages(config)] = staged
    where: dict[str, LockstepReplay] = {}
    for spec in specs:
        make, common = (_make_staged, _in_stages(config)) if spec in in_stages else (_make_envs, config)
        # A policy observes what its file was made with, as it does live.
        told: Mapping[str, Any] = policy_settings(spec)
        own = dataclasses.replace(common, **told)
        if (spec in in_stages, own) not in made:
            made[spec in in_stages, own] = make(own, name)
        where[spec] = made[spec in in_stages, own]
    policies = {spec: make_named_policy(spec, own) for spec, own in where.items()}
    if staged is not None:
        plans = solve_staged(staged)
        policies[STAGED_ORACLE] = Script([plans.schedule(text) for text in range(len(staged.prompts))])
        where[STAGED_ORACLE] = staged
    replayed: dict[str, Replayed] = {}
    for spec, policy in policies.items():
        try:
            replayed[spec] = replay_texts(where[spec], policy, [text.prompt_id for text in envs.prompts])
        except Exception as error:
            raise RuntimeError(f"policy {spec!r} failed on the recording {name!r}") from error
    episodes = {spec: own.episodes for spec, own in replayed.items()}
    columns = {
        spec: ([episode.tokens for episode in own], [episode.seconds for episode in own])
        for spec, own in episodes.items()
    }
    seconds = {spec: sum(own) for spec, (_, own) in columns.items()}
    rows = []
    for summary in summarise(episodes, best, config.bootstrap_samples, config.seed):
        spec = summary.policy
        oracle = STAGED_ORACLE if spec in {*in_stages, STAGED_ORACLE} else ORACLE
        most = seconds[best] - seconds[oracle]
        rows.append(
            ReplayRow(
                dataclasses.replace(summary, policy_microseconds=1e6 * replayed[spec].policy_seconds),
                throughput_ratio(*columns[oracle], *columns[spec], config.bootstrap_samples, config.seed),
                (seconds[best] - seconds[spec]) / most if most > 0 else None,
            )
        )
    return ReplayedSet(best, envs.tables.recording.approximate, rows), episodes


def _print(sets: Mapping[str, ReplayedSet], costs: str, out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100)
    for name, own in sets.items():
        console.print(replay_table(name, own))
    console.print(headroom_table(sets))
    console.print(f"{LEGEND}; costs: {costs}", highlight=False, markup=False)
    console.print(f"results: {out}", soft_wrap=True, highlight=False, markup=False)
