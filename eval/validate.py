"""``python -m eval validate RESULT_DIR``: repeat a comparison's schedules live and check what came out."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from entmtp_env.progress import progress_bar
from eval.consistency import inconsistencies
from eval.environment import make_live_env
from eval.interleave import EvaluationError, Run, warm_up
from eval.labels import fold_spec, label_specs
from eval.stored import StoredResults, StoredRun, load_results
from eval.watch import watch_episode
from policies import SchedulingEnv
from policies.lockstep import Script

_SHOWN = 5
_EXACT = ("tree", "deeper", "accept_length", "tokens")
_SCORE_TOLERANCES = {"float32": 1e-3}
"""How far scores may be off by element type; in the short ones another order of summation shows."""
_LOOSE_TOLERANCE = 0.05
_LABEL_WIDTH = 30


@dataclass(frozen=True)
class Validate:
    """Repeat the recorded steps of a comparison live: same prompts, seeds and trees.

    First the files must agree with each other: steps add up to episodes, episodes to the summary. Then every
    episode is decoded again with its recorded decisions, and each step must use the same tree, accept as many
    drafts, write the same tokens and, within rounding, see the same scores. Tokens per second, the policy's
    own time left out, may differ by a tolerance. Anything else is an error that names what differs, with exit
    code 2.

    Example: python -m eval validate runs/compare-20260101-120000

    Attributes:
        results: Folder that "python -m eval compare" wrote; it may have been cut short.
        num_prompts: Prompts of each set to repeat, the first ones; 0 = all.
        tolerance: How far tokens per second of a policy may be off, as a share: 0.25 lets a rate of 100 come
            out as 80 to 125. On another machine pass inf, which leaves speed out.
    """

    results: Annotated[Path, tyro.conf.Positional]
    num_prompts: int = 0
    tolerance: float = 0.25


@dataclass(frozen=True)
class Repetition:
    """A policy's episodes on one prompt set, recorded and repeated.

    Attributes:
        prompts: The prompt set.
        policy: Its spec.
        episodes: How many.
        tokens: Σ tokens recorded.
        seconds: Σ seconds of decode steps recorded.
        live_tokens: Σ tokens of the repetition.
        live_seconds: Σ seconds of the repetition.
        differences: What came out otherwise, in words.
    """

    prompts: str
    policy: str
    episodes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    live_tokens: int = 0
    live_seconds: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Tokens per second of the repetition over the recorded ones."""
        return (self.live_tokens / self.live_seconds) / (self.tokens / self.seconds)

    def add(self, own: StoredRun, live: Run, difference: str) -> Repetition:
        """This and one episode more, which differs as ``difference`` says."""
        recorded, repeated = own.run.episode, live.episode
        return Repetition(
            self.prompts,
            self.policy,
            self.episodes + 1,
            self.tokens + recorded.tokens,
            self.seconds + recorded.seconds,
            self.live_tokens + repeated.tokens,
            self.live_seconds + repeated.seconds,
            (*self.differences, *([f"{own.label}: {difference}"] if difference else [])),
        )


def validate(config: Validate) -> list[Repetition]:
    """Check a result folder, repeat it live, and print the outcome.

    Returns:
        One repetition per prompt set and policy.

    Raises:
        ValueError: When a setting is out of range, a file is damaged, or model, heads, bank or features are
            not those that were recorded.
        FileNotFoundError: When the folder, a model, a bank or a prompt file is missing.
        EvaluationError: When the files contradict each other, a step comes out otherwise, or a policy's
            tokens per second are off by more than the tolerance.
    """
    if config.num_prompts < 0:
        raise ValueError(f"num_prompts={config.num_prompts} must be at least 0")
    if not config.tolerance >= 0:
        raise ValueError(f"tolerance={config.tolerance} must be at least 0")
    results = load_results(config.results)
    env_ids = results.manifest.get("env_ids")
    if not isinstance(env_ids, dict) or not all(isinstance(own, dict) for own in env_ids.values()):
        raise ValueError(
            f"{results.path}: manifest.json has no env_ids, the environment of each policy by prompt set; "
            "results of an earlier version cannot be repeated"
        )
    _refuse(f"{results.path} contradicts itself", inconsistencies(results))
    repetitions = list(_repeat(config, results).values())
    _print(repetitions, _elsewhere(results))
    _refuse(
        f"{results.path} does not come out again live",
        [difference for own in repetitions for difference in own.differences],
    )
    slack = 1 + config.tolerance
    off = [
        f"{own.policy} on {own.prompts}: {own.live_tokens / own.live_seconds:.1f} instead of "
        f"{own.tokens / own.seconds:.1f} tokens per second"
        for own in repetitions
        if not 1 / slack <= own.ratio <= slack
    ]
    _refuse(f"texts and steps come out again, speed is off by more than {config.tolerance:g}", off)
    return repetitions


def first_difference(recorded: Run, live: Run, score_tolerance: float) -> str:
    """The first thing in which two runs differ, times aside, in words; empty when there is none.

    What a recording does not have (tokens, texts, trees and scores of an environment that does not tell) is
    not compared. Scores come last.

    Args:
        recorded: The run on disk.
        live: Its repetition.
        score_tolerance: How far a score may be off.
    """
    steps = list(zip(recorded.episode.steps, live.episode.steps, strict=False))
    details = list(zip(recorded.details, live.details, strict=False))
    for i, ((old, new), (then, now)) in enumerate(zip(steps, details, strict=True)):
        exact = [(key, getattr(old, key), getattr(new, key)) for key in _EXACT]
        exact += [
            (key, getattr(then, key), getattr(now, key))
            for key in ("token_ids", "text", "parents")
            if getattr(then, key)
        ]
        for key, before, after in exact:
            if before != after:
                return f"step {i}: {key} {before!r} recorded, {after!r} live"
    counts = [len(run.episode.steps) for run in (recorded, live)]
    if counts[0] != counts[1]:
        return f"{counts[0]} steps recorded, {counts[1]} live"
    for key in ("finish_reason", "text"):
        before, after = getattr(recorded.episode, key), getattr(live.episode, key)
        if before != after:
            return f"{key} {before!r} recorded, {after!r} live"
    for i, (then, now) in enumerate(details):
        for name, score in then.scores.items():
            if not abs(score - now.scores.get(name, math.nan)) <= score_tolerance:
                return f"step {i}: {name} {score} recorded, {now.scores.get(name)} live"
    return ""


def _repeat(config: Validate, results: StoredResults) -> Mapping[tuple[str, str], Repetition]:
    """Decode all episodes again, in the order in which they ran."""
    chosen = {
        prompts: list(seeds)[: config.num_prompts or None]
        for prompts, seeds in results.manifest["prompt_seeds"].items()
    }
    env_ids = results.manifest["env_ids"]
    runs = [
        own
        for own in results.runs
        if own.run.episode.prompt_id in chosen[own.prompts] and own.run.policy in env_ids[own.prompts]
    ]
    repetitions: dict[tuple[str, str], Repetition] = {}
    with contextlib.ExitStack() as stack:
        envs = {}
        for place in dict.fromkeys((own.prompts, env_ids[own.prompts][own.run.policy]) for own in runs):
            envs[place] = _make_env(results, *place, same_device=math.isfinite(config.tolerance))
            stack.callback(envs[place].close)
            warm_up(envs[place], {}, chosen[place[0]][0])
        bar = stack.enter_context(progress_bar())
        for own in bar.track(runs, description="repeating"):
            env, episode = envs[own.prompts, env_ids[own.prompts][own.run.policy]], own.run.episode
            unwrapped: Any = env.unwrapped
            for i, step in enumerate(episode.steps):
                if not 0 <= step.action < len(unwrapped.bank):
                    raise EvaluationError(
                        f"{own.label}: step {i} has action {step.action}, which is no tree of the bank"
                    )
            script = Script([[action for step in episode.steps for action in step.decisions]])
            live = Run(
                own.run.policy,
                own.run.seed,
                *watch_episode(env, script, episode.prompt_id, own.run.seed),
            )
            key = own.prompts, own.run.policy
            tolerance = _SCORE_TOLERANCES.get(unwrapped.manifest["dtype"], _LOOSE_TOLERANCE)
            difference = first_difference(own.run, live, tolerance)
            repetitions[key] = repetitions.get(key, Repetition(*key)).add(own, live, difference)
    return repetitions


def _elsewhere(results: StoredResults) -> list[str]:
    """Rows that ran with heads and a tree of their own, of which the settings say nothing."""
    env_ids = results.manifest["env_ids"]
    return list(
        dict.fromkeys(own.run.policy for own in results.runs if own.run.policy not in env_ids[own.prompts])
    )


def _make_env(results: StoredResults, prompts: str, env_id: str, same_device: bool) -> SchedulingEnv:
    recorded = results.manifest["environments"][prompts][env_id]
    own = {key: recorded[key] for key in ("dtype", "probe") if key in recorded}
    env = make_live_env(results.settings | own, prompts, env_id.partition(" ")[0])
    unwrapped: Any = env.unwrapped
    differing = [
        f"{key} {recorded[key]!r} recorded, {now!r} live"
        for key, now in unwrapped.manifest.items()
        if key in recorded and recorded[key] != now and (same_device or key != "device")
    ]
    if differing:
        env.close()
        raise ValueError(
            f"{results.path} was made with something else than what is here: {'; '.join(differing)}; "
            "validate it with the model, heads and bank that it was made with; on another device, with "
            "tolerance inf"
        )
    return env


def _refuse(what: str, problems: list[str]) -> None:
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise EvaluationError(f"{what}: {'; '.join(problems[:_SHOWN])}{more}")


def _print(repetitions: list[Repetition], left_out: Collection[str]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("prompts", overflow="fold")
    table.add_column("policy", no_wrap=True)
    for header in ("episodes", "differ", "tok/s\nrecorded", "tok/s\nlive", "live ÷\nrecorded"):
        table.add_column(header, justify="right", no_wrap=True)
    labels = label_specs(own.policy for own in repetitions)
    for own in repetitions:
        table.add_row(
            escape(own.prompts),
            escape(fold_spec(labels[own.policy], _LABEL_WIDTH)),
            str(own.episodes),
            str(len(own.differences)),
            f"{own.tokens / own.seconds:.1f}",
            f"{own.live_tokens / own.live_seconds:.1f}",
            f"{own.ratio:.2f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for policy in left_out:
        console.print(f"{policy}: not repeated, as it has heads and a tree of its own", highlight=False)
