"""``python -m eval compare``: policies side by side on real prompts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.features import Probe
from entmtp_env.figures import save_figure
from entmtp_env.provenance import describe_run
from eval.contest import Contest, Outcome, check_excluded, run_contests
from eval.environment import enter_policies, environment_manifest
from eval.interleave import Entrant, EvaluationError, Turns, draw_prompts
from eval.plot import comparison_figure
from eval.results import ResultFolder
from eval.statistics import REFERENCE
from eval.summary import PolicySummary, summarise
from eval.table import LEGEND, comparison_table


@dataclass(frozen=True)
class Compare:
    """Compare policies on identical prompts and seeds, interleaved prompt by prompt or step by step.

    Prints a table per prompt set: tokens per second, ρ = speed-up over autoregressive decoding by the same
    engine, τ = tokens per step, and the ratio to a baseline, with paired bootstrap 95 % intervals over
    prompts. Writes steps.jsonl, episodes.jsonl, summary.json, manifest.json and plot.png. Ctrl-C, or an
    episode that fails, stops it with a table of the prompts that all policies have finished; --resume goes
    on from there, with --exclude without a prompt that fails again.

    Example: python -m eval compare --prompts humaneval:evaluation math:evaluation --num-prompts 20
    --policies threshold:on=0.7 static:tree-8x4 mypkg.mymodule:MyPolicy

    Attributes:
        policies: Policies to compare: name, name:key=value,..., static:<tree>, name@file.json, or your own
            package.module:Class; each runs in the environment that it is made for. Autoregressive decoding
            and the baseline are added when missing.
        prompts: Prompt sets, each with its own results: chat, math, stories, humaneval, gsm8k, arc,
            litbench, sharegpt, one of these four from a file as in gsm8k@test.parquet, or a .jsonl file;
            or half of one, as in chat:evaluation and chat:calibration.
        num_prompts: Prompts of each set, the first after a seeded shuffle; 0 = all.
        max_prompt_tokens: Longer prompts are left out; 0 = none, but those that do not fit are an error.
        exclude: Prompts to leave out of all rows, by id, such as one that fails; the others keep their seeds,
            so it may change when a run is resumed.
        turns: When a row makes way for the next: after each text, or after each step, so that drift of the
            machine hits all alike; then each row needs a KV cache of its own.
        baseline: The policy that the others are divided by.
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        bank: Bank of trees: default, smollm2-pooled or another that ships, or a JSON file.
        stages: What staged policies may draft and verify: default, smollm2-staged, or a JSON file.
        acceptance: Acceptance rule: greedy, sample:temperature=T or typical:temperature=T,epsilon=E,alpha=A.
        max_new_tokens: Cap on the tokens of a text.
        probe: What is drafted before a decision: none, first, chain or union.
        features: Feature groups to observe, separated by commas, or all; staged policies have no group heads.
        capacity: Rows of the KV cache; prompt, text and the largest tree must fit.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda-graphs (steps as captured CUDA graphs).
        seed: Seed of prompt choice, sampling, order and bootstrap.
        bootstrap_samples: Resamples behind an interval.
        out: Result folder; by default runs/<command>-<date>-<time>.
        overwrite: Replace results that are in the folder already.
        resume: Go on with the results in the folder, made with the same settings and code on the same
            machine; policies that learn while decoding (bandit, ucb) begin anew.
        env_id: Gymnasium id for the policies that choose trees of the bank; an environment of your own
            (module:Id) takes the keyword arguments of EntMTP/Live-v0.
    """

    policies: tuple[str, ...] = (
        REFERENCE,
        "hydra-default",
        "static:tree-6x3",
        "threshold",
        "ladder",
        "ema-ladder",
        "random",
        "staged-threshold",
        "eagle2",
        "eagle2-cost-aware",
    )
    prompts: tuple[str, ...] = ("chat:evaluation",)
    num_prompts: int = 0
    max_prompt_tokens: int = 0
    exclude: tuple[str, ...] = ()
    turns: Turns = "text"
    baseline: str = "hydra-default"
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    stages: str = "default"
    acceptance: str = "greedy"
    max_new_tokens: int = 256
    probe: Probe = "none"
    features: str = "all"
    capacity: int = 2048
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    bootstrap_samples: int = 10_000
    out: Path | None = None
    overwrite: bool = False
    resume: bool = False
    env_id: str = "EntMTP/Live-v0"


def compare(config: Compare) -> dict[str, list[PolicySummary]]:
    """Run a comparison, print its tables and write its files.

    Args:
        config: What to compare.

    Returns:
        Summaries by prompt set.

    Raises:
        ValueError: When a setting is out of range or unknown, or not that of the run to resume.
        FileNotFoundError: When a model, checkpoint, bank, stages, prompt file or policy file is missing.
        FileExistsError: When the result folder holds results already.
        EvaluationError: When an episode ends in an error, after the tables of what was finished; or when a
            lossless rule in float32 gave different texts, after the results have been written.
        RuntimeError: When a policy or an environment raised, after the tables of what was finished.
        KeyboardInterrupt: On Ctrl-C, after the tables of what was finished.
    """
    check_settings(config)
    lossless = make_acceptance(config.acceptance).lossless
    out = result_path(config, "compare")
    with contextlib.ExitStack() as stack:
        # Everything that a typing error can break comes before the first minute of decoding.
        contests = {prompts: _prepare(config, prompts, stack) for prompts in dict.fromkeys(config.prompts)}
        check_excluded(contests)
        folder = ResultFolder(out, config.overwrite, config.resume)
        manifest = folder.continued(describe_contests(config, contests))
        for contest in contests.values():
            contest.warm_up()
        stack.enter_context(folder)
        folder.write_json("manifest.json", manifest)
        outcome = run_contests(contests, folder, config.seed)
        summaries = {
            prompts: summarise(episodes, config.baseline, config.bootstrap_samples, config.seed)
            for prompts, episodes in outcome.sets.items()
        }
        first: Any = next(iter(contests.values())).env.unwrapped
        if outcome.complete:
            folder.write_json("summary.json", plain_summaries(summaries, config.baseline))
            save_figure(out / "plot.png", comparison_figure(summaries, next(iter(contests.values())).trees))
        exact = lossless and "float32" in str(first.manifest["dtype"])
    console = result_console()
    for prompts, rows in summaries.items():
        console.print(comparison_table(prompts, rows, config.baseline))
    console.print(LEGEND, highlight=False, markup=False)
    print_end(console, config, out, outcome)
    if exact:
        _check_texts(summaries, out)
    return summaries


def check_settings(config: Compare) -> None:
    """Refuse numbers out of range and an empty list of prompt sets.

    Raises:
        ValueError: When there is such a setting.
    """
    for name, least in (
        ("num_prompts", 0),
        ("max_prompt_tokens", 0),
        ("max_new_tokens", 1),
        ("seed", 0),
        ("bootstrap_samples", 1),
    ):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if not config.prompts:
        raise ValueError("no prompt set: pass one or more to prompts, such as chat:evaluation")


def result_path(config: Compare, command: str) -> Path:
    """The result folder.

    Raises:
        ValueError: When a run is to be resumed and its folder is not named.
    """
    if config.resume and config.out is None:
        raise ValueError("resume needs the folder of the run to go on with: pass it to out")
    return config.out or Path("runs") / f"{command}-{datetime.now():%Y%m%d-%H%M%S}"


def describe_contests(config: Compare, contests: Mapping[str, Contest]) -> dict[str, Any]:
    """The manifest: machine, command, settings, and by prompt set the environments and the seeds.

    ``environments`` has those of a prompt set by Gymnasium id, ``env_ids`` the id by row; a row with a model
    of its own is in neither. ``policies`` has the fingerprints of those that were read from files.
    """
    environments: dict[str, dict[str, Any]] = {prompts: {} for prompts in contests}
    env_ids: dict[str, dict[str, str]] = {prompts: {} for prompts in contests}
    for prompts, contest in contests.items():
        for row, entrant in contest.entrants.items():
            if entrant.env_id:
                env_ids[prompts][row] = entrant.env_id
                environments[prompts].setdefault(entrant.env_id, environment_manifest(entrant.env))
    settings = dataclasses.asdict(config) | {"out": config.out and str(config.out)}
    return describe_run() | {
        "settings": settings,
        "environments": environments,
        "env_ids": env_ids,
        "policies": {
            prompts: {row: own.fingerprint for row, own in contest.entrants.items() if own.fingerprint}
            for prompts, contest in contests.items()
        },
        "prompt_texts": {prompts: contest.prompts_fingerprint for prompts, contest in contests.items()},
        "prompt_seeds": {prompts: dict(contest.seeds) for prompts, contest in contests.items()},
    }


def result_console() -> Console:
    """Standard output, 100 columns wide where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 100)


def print_end(console: Console, config: Compare, out: Path, outcome: Outcome) -> None:
    """Say where the results are, and how to go on when they are not complete.

    Raises:
        RuntimeError: When an episode failed.
        KeyboardInterrupt: When they are not complete otherwise.
    """
    lines = [f"results: {out}"]
    if outcome.stopped is not None:
        lines.append(f"stopped; to go on, run the same command with --resume --out {out}")
    if isinstance(outcome.stopped, RuntimeError):
        excluded = shlex.join([*config.exclude, outcome.prompt_id])
        lines.append(f"if it is this prompt alone that fails, add: --exclude {excluded}")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if outcome.stopped is not None:
        raise outcome.stopped


def _prepare(config: Compare, prompts: str, stack: contextlib.ExitStack) -> Contest:
    specs = dict.fromkeys((REFERENCE, config.baseline, *config.policies))
    rows = {spec: spec for spec in specs}
    entrants = enter_policies(dataclasses.asdict(config), prompts, rows, stack, config.turns)
    return make_contest(config, prompts, entrants)


def make_contest(config: Compare, prompts: str, entrants: Mapping[str, Entrant]) -> Contest:
    """Draw the prompts: the first that are short enough, after a seeded shuffle.

    Raises:
        ValueError: When none is, or one does not fit into the KV cache of every row.
    """
    unwrapped: Any = entrants[REFERENCE].env.unwrapped
    by_id = {prompt.prompt_id: prompt for prompt in unwrapped.prompts}
    most = config.max_prompt_tokens
    short = (
        (prompt_id, seed)
        for prompt_id, seed in draw_prompts(unwrapped.prompts, 0, config.seed).items()
        if not most or len(unwrapped.engine.encode(by_id[prompt_id])) <= most
    )
    seeds = dict(itertools.islice(short, config.num_prompts or None))
    if not seeds:
        raise ValueError(f"{prompts!r} has no prompt of at most {most} tokens")
    contest = Contest(entrants, seeds, config.exclude, config.turns)
    contest.check_room()
    return contest


def plain_summaries(summaries: Mapping[str, Sequence[PolicySummary]], baseline: str) -> dict[str, Any]:
    """The summaries as plain JSON values."""
    rows = {prompts: [dataclasses.asdict(row) for row in own] for prompts, own in summaries.items()}
    return {"reference": REFERENCE, "baseline": baseline, "sets": rows}


def _check_texts(summaries: Mapping[str, Sequence[PolicySummary]], out: Path) -> None:
    differing = [
        f"{row.policy} on {prompts} ({row.prompts - row.same_texts} of {row.prompts})"
        for prompts, rows in summaries.items()
        for row in rows
        if row.same_texts < row.prompts
    ]
    if differing:
        raise EvaluationError(
            "the acceptance rule is lossless and the model runs in float32, so every text must equal that of "
            f"{REFERENCE}; these do not: {'; '.join(differing)}. See {out / 'episodes.jsonl'}: one "
            "text that departs late can be two logits that tie within rounding, more is a bug of the decoder"
        )
