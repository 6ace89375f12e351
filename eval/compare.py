"""``python -m eval compare``: policies side by side on real prompts."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console

from entmtp_env.decoding.acceptance import make_acceptance
from entmtp_env.features import Probe
from entmtp_env.figures import save_figure
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from eval.interleave import EvaluationError, draw_prompts, interleave, warm_up
from eval.plot import comparison_figure
from eval.results import ResultFolder
from eval.statistics import REFERENCE, PolicySummary, summarise
from eval.table import LEGEND, comparison_table
from policies import Episode, Predictor, SchedulingEnv
from policies.registry import make_named_policy


@dataclass(frozen=True)
class Compare:
    """Compare policies on identical prompts and seeds, interleaved prompt by prompt.

    Prints a table per prompt set: tokens per second, ρ = speed-up over autoregressive decoding by the same
    engine, τ = tokens per step, and the ratio to a baseline, with paired bootstrap 95 % intervals over
    prompts. Writes steps.jsonl, episodes.jsonl, summary.json, manifest.json and plot.png.

    Example: python -m eval compare --prompts humaneval:evaluation math:evaluation --num-prompts 20
    --policies threshold:on=0.7 static:tree-8x4 mypkg.mymodule:MyPolicy

    Attributes:
        policies: Policies to compare: name, name:key=value,..., static:<tree>, name@file.json, or your own
            package.module:Class. Autoregressive decoding and the baseline are added when missing.
        prompts: Prompt sets, each with its own results: chat, math, stories, humaneval or a .jsonl file, or
            half of one, as in chat:evaluation and chat:calibration.
        num_prompts: Prompts of each set, the first after a seeded shuffle; 0 = all.
        baseline: The policy that the others are divided by.
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        bank: Bank of trees: default, or a JSON file.
        acceptance: Acceptance rule: greedy, sample:temperature=T or typical:temperature=T,epsilon=E,alpha=A.
        max_new_tokens: Cap on the tokens of a text.
        probe: What is drafted before a decision: none, chain or union.
        features: Feature groups to observe, separated by commas, or all.
        capacity: Rows of the KV cache; prompt, text and the largest tree must fit.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
        seed: Seed of prompt choice, sampling, order and bootstrap.
        bootstrap_samples: Resamples behind an interval.
        out: Result folder; by default runs/compare-<date>-<time>.
        overwrite: Replace results that are in the folder already.
        env_id: Gymnasium id; an environment of your own (module:Id) takes the same keyword arguments.
    """

    policies: tuple[str, ...] = (
        REFERENCE,
        "hydra-default",
        "static:tree-6x3",
        "threshold",
        "ladder",
        "ema-ladder",
        "random",
    )
    prompts: tuple[str, ...] = ("chat:evaluation",)
    num_prompts: int = 0
    baseline: str = "hydra-default"
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
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
    env_id: str = "EntMTP/Live-v0"


def compare(config: Compare) -> dict[str, list[PolicySummary]]:
    """Run a comparison, print its tables and write its files.

    Args:
        config: What to compare.

    Returns:
        Summaries by prompt set.

    Raises:
        ValueError: When a setting is out of range or unknown.
        FileNotFoundError: When a model, checkpoint, bank, prompt file or policy file is missing.
        FileExistsError: When the result folder holds results already.
        EvaluationError: When an episode ends in an error, or a lossless rule in float32 gave different texts;
            in the latter case the results have been written.
    """
    for name, least in (("num_prompts", 0), ("max_new_tokens", 1), ("seed", 0), ("bootstrap_samples", 1)):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if not config.prompts:
        raise ValueError("no prompt set: pass one or more to prompts, such as chat:evaluation")
    lossless = make_acceptance(config.acceptance).lossless
    out = config.out or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    with contextlib.ExitStack() as stack:
        # Everything that a typing error can break comes before the first minute of decoding.
        contests = {
            prompts: _Contest.prepare(config, prompts, stack) for prompts in dict.fromkeys(config.prompts)
        }
        folder = ResultFolder(out, config.overwrite)
        for contest in contests.values():
            contest.warm_up()
        stack.enter_context(folder)
        folder.write_json("manifest.json", _manifest(config, contests))
        summaries = _run(config, contests, folder)
        folder.write_json("summary.json", _plain(config, summaries))
        first: Any = next(iter(contests.values())).env.unwrapped
        save_figure(out / "plot.png", comparison_figure(summaries, first.bank.names))
        exact = lossless and "float32" in str(first.manifest["dtype"])
    _print(summaries, config.baseline, out)
    if exact:
        _check_texts(summaries, out)
    return summaries


@dataclass(frozen=True)
class _Contest:
    """A prompt set, ready to run."""

    env: SchedulingEnv
    policies: Mapping[str, Predictor]
    seeds: Mapping[str, int]

    @classmethod
    def prepare(cls, config: Compare, prompts: str, stack: contextlib.ExitStack) -> _Contest:
        env: SchedulingEnv = gymnasium.make(
            config.env_id,
            model=config.model,
            heads=config.heads,
            bank=config.bank,
            prompts=prompts,
            acceptance=config.acceptance,
            max_new_tokens=config.max_new_tokens,
            probe=config.probe,
            features=config.features,
            capacity=config.capacity,
            dtype=config.dtype,
            device=config.device,
        )
        stack.callback(env.close)
        unwrapped: Any = env.unwrapped
        specs = dict.fromkeys((REFERENCE, config.baseline, *config.policies))
        policies = {spec: make_named_policy(spec, env) for spec in specs}
        return cls(env, policies, draw_prompts(unwrapped.prompts, config.num_prompts, config.seed))

    def warm_up(self) -> None:
        warm_up(self.env, self.policies, next(iter(self.seeds)))


def _run(
    config: Compare, contests: Mapping[str, _Contest], folder: ResultFolder
) -> dict[str, list[PolicySummary]]:
    total = sum(len(contest.policies) * len(contest.seeds) for contest in contests.values())
    summaries = {}
    with progress_bar() as bar:
        task = bar.add_task("episodes", total=total)
        for prompts, contest in contests.items():
            bar.update(task, description=prompts)
            episodes: dict[str, list[Episode]] = {spec: [] for spec in contest.policies}
            for run in interleave(contest.env, contest.policies, contest.seeds, config.seed):
                episodes[run.policy].append(run.episode)
                folder.add(prompts, run)
                bar.advance(task)
            summaries[prompts] = summarise(episodes, config.baseline, config.bootstrap_samples, config.seed)
    return summaries


def _manifest(config: Compare, contests: Mapping[str, _Contest]) -> dict[str, Any]:
    environments = {}
    for prompts, contest in contests.items():
        unwrapped: Any = contest.env.unwrapped
        environments[prompts] = dict(unwrapped.manifest)
    settings = dataclasses.asdict(config) | {"out": config.out and str(config.out)}
    return describe_run() | {
        "settings": settings,
        "environments": environments,
        "prompt_seeds": {prompts: dict(contest.seeds) for prompts, contest in contests.items()},
    }


def _plain(config: Compare, summaries: Mapping[str, Sequence[PolicySummary]]) -> dict[str, Any]:
    rows = {prompts: [dataclasses.asdict(row) for row in own] for prompts, own in summaries.items()}
    return {"reference": REFERENCE, "baseline": config.baseline, "sets": rows}


def _print(summaries: Mapping[str, Sequence[PolicySummary]], baseline: str, out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100)
    for prompts, rows in summaries.items():
        console.print(comparison_table(prompts, rows, baseline))
    console.print(LEGEND, highlight=False, markup=False)
    console.print(f"results: {out}", soft_wrap=True, highlight=False, markup=False)


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
