"""Calibrate the baseline schedulers on prompts that are not those reported on (arXiv 2606.27550)."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

import entmtp_env  # noqa: F401  registers the environments
from entmtp_env.features import Probe
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.trees import TopologyBank
from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.ema_ladder import EmaLadder
from policies.ladder import Ladder
from policies.policy_file import PolicyFile
from policies.rollout import Episode, run_episode
from policies.static import Static
from policies.threshold import Threshold
from train.candidates import StaticRuns, ema_ladder_options, ladder_options, threshold_options

PolicyName = Literal["static", "threshold", "ladder", "ema-ladder"]


@dataclass(frozen=True)
class Calibrate:
    """Find the best static tree and the best settings of the schedulers, on calibration prompts.

    Every tree runs alone first; that gives the candidates, which then run against the best tree. The time is
    about (trees + candidates) x prompts x new tokens / (tokens per second), and is printed.

    Attributes:
        model: Base model: a known name, a path or a Hugging Face repository.
        heads: Draft heads: "auto", "medusa" or a checkpoint.
        bank: Trees to choose from: a known name or a JSON file.
        prompts: Prompt set; report on another one, such as its ":evaluation" half.
        num_prompts: Use that many of them, drawn at random; 0 = all.
        acceptance: Acceptance rule.
        max_new_tokens: Token cap of each text.
        probe: What is drafted before each decision: none, chain or union.
        dtype: Element type, "auto" for the fastest.
        device: "auto", "cpu" or "cuda".
        capacity: KV rows; prompt, text and the largest tree must fit.
        seed: Seed of the choice of prompts and of the sampling.
        policies: Which policies to calibrate.
        scores: Features that a threshold or a ladder may read.
        quantiles: Where thresholds are tried: quantiles of the score over the steps of the static trees.
        out: Folder for the policy files, one a policy: <out>/<policy>.json.
        env: Id of the environment.
    """

    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    prompts: str = "humaneval:calibration"
    num_prompts: int = 3
    acceptance: str = "greedy"
    max_new_tokens: int = 128
    probe: Probe = "none"
    dtype: str = "auto"
    device: str = "auto"
    capacity: int = 2048
    seed: int = 0
    policies: tuple[PolicyName, ...] = ("static", "threshold", "ladder", "ema-ladder")
    scores: tuple[str, ...] = ("best_path_value", "deep_path_value", "expected_accept")
    quantiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    out: Path = Path("runs/calibration")
    env: str = "EntMTP/Live-v0"

    def __post_init__(self) -> None:
        """Refuse settings that name nothing to calibrate."""
        if not (self.policies and self.scores and self.quantiles):
            raise ValueError("policies, scores and quantiles must each name at least one")
        if not all(0 <= share <= 1 for share in self.quantiles):
            raise ValueError(f"quantiles must be in [0, 1], got {self.quantiles}")


@dataclass(eq=False)
class Trial:
    """A policy, and what it did on the calibration prompts.

    Attributes:
        policy: The policy.
        episodes: One a prompt, in their order.
        observations: What it saw at each decision, ``(F,)`` each.
    """

    policy: SchedulerPolicy
    episodes: list[Episode] = field(default_factory=list)
    observations: list[npt.NDArray[Any]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second, over all episodes; the policy's own time counts."""
        seconds = sum(episode.seconds + episode.policy_seconds for episode in self.episodes)
        return sum(episode.tokens for episode in self.episodes) / seconds

    @property
    def tau(self) -> float:
        """Tokens per step, over all episodes."""
        return sum(e.tokens for e in self.episodes) / sum(len(e.steps) for e in self.episodes)

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], Memory | None]:
        """The policy's choice; the observation is noted."""
        self.observations.append(observation)
        return self.policy.predict(observation, state, episode_start, deterministic)


def measure(
    env: SchedulingEnv, policies: Sequence[SchedulerPolicy], prompt_ids: Sequence[str], seed: int, task: str
) -> list[Trial]:
    """Run every policy on every prompt, prompt by prompt, so that drift of the machine hits all alike.

    Args:
        env: Where to run.
        policies: What to run.
        prompt_ids: The prompts.
        seed: Seed of every episode.
        task: Title of the progress bar.

    Raises:
        RuntimeError: When a step fails, as on a device out of memory.
    """
    trials = [Trial(policy) for policy in policies]
    with progress_bar() as bar:
        episodes = bar.add_task(task, total=len(trials) * len(prompt_ids))
        for prompt_id in prompt_ids:
            for trial in trials:
                episode = run_episode(env, trial, prompt_id, seed)
                if episode.finish_reason.startswith("error"):
                    raise RuntimeError(f"{trial.policy.spec} on {prompt_id}: {episode.finish_reason}")
                trial.episodes.append(episode)
                bar.advance(episodes)
    return trials


def calibrate(config: Calibrate) -> None:
    """Measure, choose, and write ``<out>/<policy>.json`` for each policy asked for.

    Raises:
        FileNotFoundError: When the model, the heads, the bank or the prompts are not there.
        ValueError: When a setting is unknown, or a score is no feature of the environment.
    """
    keywords = (
        "model",
        "heads",
        "bank",
        "prompts",
        "acceptance",
        "max_new_tokens",
        "probe",
        "dtype",
        "device",
        "capacity",
    )
    env = gymnasium.make(config.env, **{name: getattr(config, name) for name in keywords})
    try:
        _calibrate(config, env)
    finally:
        env.close()


def _calibrate(config: Calibrate, env: SchedulingEnv) -> None:
    unwrapped: Any = env.unwrapped
    for score in config.scores:
        Threshold(env, score=score)  # refuses an unknown feature now, not after the measurements
    prompt_ids = _draw_prompts(config, [prompt.prompt_id for prompt in unwrapped.prompts])
    with Console(stderr=True).status("warming up every tree"):
        unwrapped.warm_up()

    tokens = len(prompt_ids) * config.max_new_tokens
    bank: TopologyBank = unwrapped.bank
    _note(f"{len(bank)} trees on {len(prompt_ids)} prompts: up to {len(bank) * tokens} tokens")
    statics = measure(
        env, [Static(env, tree) for tree in bank.names], prompt_ids, config.seed, "static trees"
    )
    runs = static_runs(bank, statics)
    best = Static(env, runs.best.name)
    candidates = _candidates(config, env, runs)
    contest: list[Trial] = []
    if candidates:
        minutes = (len(candidates) + 1) * tokens / runs.rates[runs.best.name] / 60
        _note(f"{len(candidates)} candidates and {best.spec}: up to about {minutes:.1f} min")
        # The best tree runs again: rates are comparable within one interleaved run only.
        contest = measure(env, [best, *candidates], prompt_ids, config.seed, "schedulers")

    winners = []
    for name in config.policies:
        run = statics if name == "static" else contest
        rivals = [trial for trial in run if trial.policy.name == name]
        if not rivals:
            _note(f"{name}: the bank and the scores leave no candidate; {name}.json is not written")
            continue
        winner = max(rivals, key=lambda trial: trial.rate)
        winners.append(winner)
        reference = next(trial for trial in run if trial.policy.spec == best.spec)
        record = _record(config, unwrapped.manifest, prompt_ids, winner, reference, rivals)
        PolicyFile.of(winner.policy, record).save(config.out / f"{name}.json")
        _note(f"wrote {config.out / name}.json")
    Console().print(_table([statics, contest], winners, best.spec))


def static_runs(bank: TopologyBank, trials: Sequence[Trial]) -> StaticRuns:
    """Sum up the runs of every tree of ``bank``, in its order."""
    scores = {
        tree.name: dict(zip(trial.policy.feature_names, np.stack(trial.observations, axis=1), strict=True))
        for tree, trial in zip(bank, trials, strict=True)
    }
    rates = {tree.name: trial.rate for tree, trial in zip(bank, trials, strict=True)}
    return StaticRuns(bank, rates, scores)


def _candidates(config: Calibrate, env: SchedulingEnv, runs: StaticRuns) -> list[SchedulerPolicy]:
    policies: list[SchedulerPolicy] = []
    if "threshold" in config.policies:
        policies += [Threshold(env, **o) for o in threshold_options(runs, config.scores, config.quantiles)]
    if "ladder" in config.policies:
        policies += [Ladder(env, **o) for o in ladder_options(runs, config.scores)]
    if "ema-ladder" in config.policies:
        policies += [EmaLadder(env, **o) for o in ema_ladder_options(runs)]
    return policies


def _draw_prompts(config: Calibrate, prompt_ids: Sequence[str]) -> list[str]:
    count = config.num_prompts or len(prompt_ids)
    if not 0 < count <= len(prompt_ids):
        raise ValueError(
            f"num_prompts={config.num_prompts}, but {config.prompts!r} has {len(prompt_ids)}; 0 uses them all"
        )
    return random.Random(config.seed).sample(prompt_ids, count)


def _record(
    config: Calibrate,
    manifest: Mapping[str, Any],
    prompt_ids: Sequence[str],
    winner: Trial,
    best_static: Trial,
    rivals: Sequence[Trial],
) -> dict[str, Any]:
    """The ``calibration`` entry of a policy file; rates are those of one run."""
    return {
        "prompts": config.prompts,
        "num_prompts": len(prompt_ids),
        "prompt_ids": prompt_ids,
        "max_new_tokens": config.max_new_tokens,
        "seed": config.seed,
        **describe_run(),
        "environment": dict(manifest),
        "tokens_per_second": winner.rate,
        "best_static": {"spec": best_static.policy.spec, "tokens_per_second": best_static.rate},
        "candidates": [{"spec": t.policy.spec, "tokens_per_second": t.rate, "tau": t.tau} for t in rivals],
    }


def _table(runs: Sequence[Sequence[Trial]], winners: Sequence[Trial], best: str) -> Table:
    """All trials, one section a run; the winners stand out."""
    table = Table(title="calibration")
    table.add_column("policy", overflow="fold")
    table.add_column("")
    for heading in ("tok/s", "x best static", "tokens/step"):
        table.add_column(heading, justify="right")
    for trials in runs:
        reference = next((trial.rate for trial in trials if trial.policy.spec == best), np.nan)
        for trial in trials:
            won = trial in winners
            numbers = f"{trial.rate:.2f}", f"{trial.rate / reference:.3f}", f"{trial.tau:.2f}"
            table.add_row(
                Text(trial.policy.spec), "chosen" if won else "", *numbers, style="bold" if won else None
            )
        table.add_section()
    return table


def _note(text: str) -> None:
    print(text, file=sys.stderr)
