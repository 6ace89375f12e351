"""``python -m eval validate RESULT_DIR``: repeat a comparison's schedules live and check what came out."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
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
from eval.environment import environment_manifest, make_live_env
from eval.interleave import EvaluationError, Run, warm_up
from eval.labels import fold_spec, label_specs
from eval.medusa_row import MEDUSA, make_medusa_env
from eval.same_run import first_difference, told
from eval.stored import StoredResults, StoredRun, load_results
from eval.watch import watch_episode
from policies import SchedulingEnv
from policies.lockstep import Script

_SHOWN = 5
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
    own time left out, may differ by a tolerance, and so may the time of the prefill. Anything else is an
    error that names what differs, with exit code 2.

    Example: python -m eval validate runs/compare-20260101-120000

    Attributes:
        results: Folder that "python -m eval compare" wrote; it may have been cut short.
        num_prompts: Prompts of each set to repeat, the first ones; 0 = all.
        tolerance: How far tokens per second and prefill of a policy may be off, as a share: 0.25 lets a rate
            of 100 come out as 80 to 125. On another machine pass inf, which leaves speed out.
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
        prefill_seconds: Σ seconds of prefill recorded.
        live_prefill_seconds: Σ seconds of prefill of the repetition.
        differences: What came out otherwise, in words.
    """

    prompts: str
    policy: str
    episodes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    live_tokens: int = 0
    live_seconds: float = 0.0
    prefill_seconds: float = 0.0
    live_prefill_seconds: float = 0.0
    differences: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """Tokens per second of the repetition over the recorded ones."""
        return (self.live_tokens / self.live_seconds) / (self.tokens / self.seconds)

    @property
    def prefill_ratio(self) -> float:
        """Seconds of prefill of the repetition over the recorded ones; an environment may have none."""
        if self.prefill_seconds:
            return self.live_prefill_seconds / self.prefill_seconds
        return math.inf if self.live_prefill_seconds else 1.0

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
            self.prefill_seconds + recorded.prefill_seconds,
            self.live_prefill_seconds + repeated.prefill_seconds,
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
            tokens per second or prefill are off by more than the tolerance.
    """
    if config.num_prompts < 0:
        raise ValueError(f"num_prompts={config.num_prompts} must be at least 0")
    if not config.tolerance >= 0:
        raise ValueError(f"tolerance={config.tolerance} must be at least 0")
    results = load_results(config.results)
    _refuse(f"{results.path} contradicts itself", inconsistencies(results))
    repetitions = list(_repeat(config, results, _places(results)).values())
    _print(repetitions)
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
    ] + [
        f"{own.policy} on {own.prompts}: {own.live_prefill_seconds:.3g} instead of {own.prefill_seconds:.3g} "
        "seconds of prefill"
        for own in repetitions
        if not 1 / slack <= own.prefill_ratio <= slack
    ]
    _refuse(f"texts and steps come out again, speed is off by more than {config.tolerance:g}", off)
    return repetitions


def _places(results: StoredResults) -> dict[str, dict[str, str]]:
    """Where each row ran, by prompt set: a key of the environments, or Medusa's row.

    Raises:
        ValueError: When the manifest does not say.
    """
    env_ids = results.manifest.get("env_ids")
    if not isinstance(env_ids, dict) or not all(isinstance(own, dict) for own in env_ids.values()):
        raise ValueError(
            f"{results.path}: the files agree with each other, but manifest.json has no env_ids, the "
            "environment of each policy by prompt set; results of an earlier version cannot be repeated"
        )
    places = {
        prompts: own | ({MEDUSA: MEDUSA} if _recorded_env(results, prompts, MEDUSA) else {})
        for prompts, own in env_ids.items()
    }
    for own in results.runs:
        place = places.get(own.prompts, {}).get(own.run.policy, "")
        if not _recorded_env(results, own.prompts, place):
            raise ValueError(
                f"{results.path}: manifest.json does not say in which environment {own.run.policy!r} ran on "
                f"{own.prompts}; restore it"
            )
    return places


def _recorded_env(results: StoredResults, prompts: str, place: str) -> dict[str, Any]:
    """What the manifest says of an environment; empty when nothing."""
    manifest = results.manifest
    if place == MEDUSA:
        recorded = manifest.get("medusa_environments", {}).get(prompts)
    else:
        recorded = manifest["environments"].get(prompts, {}).get(place)
    return recorded if isinstance(recorded, dict) else {}


def _repeat(
    config: Validate, results: StoredResults, places: Mapping[str, Mapping[str, str]]
) -> Mapping[tuple[str, str], Repetition]:
    """Decode all episodes again, in the order in which they ran."""
    excluded = results.settings.get("exclude", ())
    chosen = {
        prompts: [prompt_id for prompt_id in seeds if prompt_id not in excluded][: config.num_prompts or None]
        for prompts, seeds in results.manifest["prompt_seeds"].items()
    }
    runs: dict[tuple[str, str], list[Run]] = {}
    for own in results.runs:
        runs.setdefault((own.prompts, places[own.prompts][own.run.policy]), []).append(own.run)
    details = {place: told(own) for place, own in runs.items()}
    repetitions: dict[tuple[str, str], Repetition] = {}
    with contextlib.ExitStack() as stack:
        envs = {}
        for place in runs:
            envs[place] = _make_env(results, *place, stack, same_device=math.isfinite(config.tolerance))
            warm_up(envs[place], {}, chosen[place[0]][0])
        bar = stack.enter_context(progress_bar())
        again = [own for own in results.runs if own.run.episode.prompt_id in chosen[own.prompts]]
        for own in bar.track(again, description="repeating"):
            place, episode = (own.prompts, places[own.prompts][own.run.policy]), own.run.episode
            env = envs[place]
            unwrapped: Any = env.unwrapped
            for i, step in enumerate(episode.steps):
                if not 0 <= step.action < len(unwrapped.bank):
                    raise EvaluationError(
                        f"{own.label}: step {i} has action {step.action}, which is no tree of the bank"
                    )
            script = Script(
                [[action for step in episode.steps for action in step.decisions]],
                observes=any(step.feature_seconds for step in episode.steps),
            )
            live = Run(
                own.run.policy,
                own.run.seed,
                *watch_episode(env, script, episode.prompt_id, own.run.seed),
            )
            key = own.prompts, own.run.policy
            tolerance = _SCORE_TOLERANCES.get(unwrapped.manifest["dtype"], _LOOSE_TOLERANCE)
            difference = first_difference(own.run, live, tolerance, details[place])
            repetitions[key] = repetitions.get(key, Repetition(*key)).add(own, live, difference)
    return repetitions


def _make_env(
    results: StoredResults, prompts: str, place: str, stack: contextlib.ExitStack, same_device: bool
) -> SchedulingEnv:
    recorded = _recorded_env(results, prompts, place)
    settings = results.settings | {key: recorded[key] for key in ("dtype", "probe") if key in recorded}
    if place == MEDUSA:
        env = make_medusa_env(settings, prompts, stack)
    else:
        env_id, *own = place.split(" ")
        settings |= {key: value for key, _, value in (setting.partition("=") for setting in own)}
        env = make_live_env(settings, prompts, env_id)
        stack.callback(env.close)
    now = environment_manifest(env)
    differing = [
        f"{key} {recorded.get(key)!r} recorded, {now.get(key)!r} live"
        for key in {**now, **recorded}
        if recorded.get(key) != now.get(key) and (same_device or key != "device")
    ]
    if differing:
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


def _print(repetitions: list[Repetition]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("prompts", overflow="fold")
    table.add_column("policy", no_wrap=True)
    numbers = ("episodes", "differ", "tok/s\nrecorded", "tok/s\nlive", "live ÷\nrecorded", "prefill\nratio")
    for header in numbers:
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
            f"{own.prefill_ratio:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)
