"""``python -m eval regimes``: the paper's appendix, what foretells how much of a draft is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import gymnasium
from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.figures import save_figure
from entmtp_env.files import write_text_atomically
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from eval.environment import make_live_env
from eval.interleave import draw_prompts
from eval.regimes_analysis import CLASSIFIED, TaskRegimes, analyse
from eval.regimes_log import StepLog, log_steps
from eval.regimes_plot import regimes_figure
from eval.regimes_table import LEGEND, auroc_table, correlation_table, verdicts
from eval.results import ResultFolder
from policies import SchedulingEnv


@dataclass(frozen=True)
class Regimes:
    """Ask which features foretell the accept length of the next step, as in the paper's appendix.

    Decodes with one tree and logs every feature at every decision. Prints, per task, Pearson's r of each
    feature with the accept length of the step that follows, and the AUROC of small networks that tell which
    steps accept no draft, trained on other texts; then whether the paper's claims hold. Writes steps.jsonl,
    summary.json, manifest.json and plot.png.

    Example: python -m eval regimes --source live --tasks humaneval math --num-prompts 50

    Attributes:
        tasks: Tasks, each with its own results: recordings (shipped ones or .npz files) or, live, prompt sets
            (chat, math, stories, humaneval or .jsonl files); or halves of them, as in chat:evaluation.
        source: recording replays recorded texts, with their acceptance rule; live decodes.
        num_prompts: Texts of each task, the first after a seeded shuffle; 0 = all.
        tree: Tree of the bank that drafts at every step.
        bank: Bank of trees: default, smollm2-pooled or another that ships, or a JSON file.
        probe: What is drafted before a decision: none, first, chain or union; with none, as in the paper,
            the heads' features are those of the last draft.
        max_new_tokens: Cap on the tokens of a text; by default that of the recording, or 256 live.
        model: Base model, live: a known name, a folder or a Hugging Face repository.
        heads: Draft heads, live: auto, medusa or a checkpoint.
        acceptance: Acceptance rule, live: greedy, sample:temperature=T or
            typical:temperature=T,epsilon=E,alpha=A.
        dtype: Live: auto, float32, bfloat16 or float16.
        device: Live: auto, cpu, cuda or cuda-graphs (steps as captured CUDA graphs).
        capacity: Rows of the KV cache.
        folds: Folds of texts for the networks, at least 3.
        seed: Seed of prompt choice, sampling, folds, networks and bootstrap.
        bootstrap_samples: Resamples of texts behind an interval.
        out: Result folder; by default runs/regimes-<date>-<time>.
        overwrite: Replace results that are in the folder already.
    """

    tasks: tuple[str, ...] = ("chat", "math", "humaneval", "stories")
    source: Literal["recording", "live"] = "recording"
    num_prompts: int = 0
    tree: str = "hydra-default"
    bank: str = "default"
    probe: Probe = "none"
    max_new_tokens: int | None = None
    model: str = "smollm2"
    heads: str = "auto"
    acceptance: str = "typical:temperature=0.7,epsilon=0.09,alpha=0.3"
    dtype: str = "auto"
    device: str = "auto"
    capacity: int = 2048
    folds: int = 5
    seed: int = 0
    bootstrap_samples: int = 10_000
    out: Path | None = None
    overwrite: bool = False


def regimes(config: Regimes) -> dict[str, TaskRegimes]:
    """Log the steps, analyse them, print the tables and write the files.

    Returns:
        What was found, by task.

    Raises:
        ValueError: When a setting is out of range or unknown, or a task has fewer different texts than folds.
        FileNotFoundError: When a file is missing.
        FileExistsError: When the result folder holds results already.
        EvaluationError: When a text ends in an error.
    """
    for name, least in (("num_prompts", 0), ("folds", 3), ("seed", 0), ("bootstrap_samples", 1)):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if not config.tasks:
        raise ValueError("no task: pass one or more to tasks, such as chat")
    out = config.out or Path("runs") / f"regimes-{datetime.now():%Y%m%d-%H%M%S}"
    folder = ResultFolder(out, config.overwrite)
    with contextlib.ExitStack() as stack:
        # A typing error shows before the first minute of decoding.
        envs = {task: _make_env(config, task, stack) for task in dict.fromkeys(config.tasks)}
        seeds = {
            task: draw_prompts(_unwrapped(env).prompts, config.num_prompts, config.seed)
            for task, env in envs.items()
        }
        for task, drawn in seeds.items():
            if len(drawn) < config.folds:
                raise ValueError(f"{task} has {len(drawn)} texts for folds={config.folds}; draw more prompts")
        logs = _log(config.tree, envs, seeds)
        manifests = {task: dict(_unwrapped(env).manifest) for task, env in envs.items()}
    found = {}
    with progress_bar() as bar:
        work = bar.add_task("training", total=len(logs) * len(CLASSIFIED) * config.folds)
        for task, log in logs.items():
            found[task] = analyse(
                log,
                config.folds,
                config.bootstrap_samples,
                config.seed,
                manifests[task].get("approximate", False),
                lambda: bar.advance(work),
            )
    folder.clear()
    _write(config, folder, logs, found, manifests)
    _print(found, out)
    return found


def _make_env(config: Regimes, task: str, stack: contextlib.ExitStack) -> SchedulingEnv:
    if config.source == "recording":
        env: SchedulingEnv = gymnasium.make(
            "EntMTP/Replay-v0",
            recording=task,
            # Seconds matter to nothing here, and a formula prices the trees of any bank.
            costs="analytic:base=1",
            bank=config.bank,
            probe=config.probe,
            max_new_tokens=config.max_new_tokens,
            capacity=config.capacity,
        )
    else:
        cap = 256 if config.max_new_tokens is None else config.max_new_tokens
        settings = dataclasses.asdict(config) | {"max_new_tokens": cap, "features": "all"}
        env = make_live_env(settings, task, "EntMTP/Live-v0")
    stack.callback(env.close)
    bank = _unwrapped(env).bank
    if not len(bank[bank.index(config.tree)]):
        raise ValueError(f"tree {config.tree!r} drafts nothing that could be accepted; choose another one")
    return env


def _log(
    tree: str, envs: Mapping[str, SchedulingEnv], seeds: Mapping[str, Mapping[str, int]]
) -> dict[str, StepLog]:
    with progress_bar() as bar:
        work = bar.add_task("decoding", total=sum(map(len, seeds.values())))
        return {
            task: log_steps(env, tree, seeds[task], lambda: bar.advance(work)) for task, env in envs.items()
        }


def _unwrapped(env: SchedulingEnv) -> Any:
    return env.unwrapped


def _write(
    config: Regimes,
    folder: ResultFolder,
    logs: Mapping[str, StepLog],
    found: Mapping[str, TaskRegimes],
    environments: Mapping[str, Any],
) -> None:
    settings = dataclasses.asdict(config) | {"out": config.out and str(config.out)}
    folder.write_json("manifest.json", describe_run() | {"settings": settings, "environments": environments})
    plain = {task: dataclasses.asdict(own) for task, own in found.items()}
    folder.write_json("summary.json", {"tasks": plain, "verdicts": verdicts(found)})
    lines = (line for task, log in logs.items() for line in log.lines(task))
    write_text_atomically(folder.path / "steps.jsonl", "".join(lines))
    save_figure(folder.path / "plot.png", regimes_figure(found))


def _print(found: Mapping[str, TaskRegimes], out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(correlation_table(found))
    console.print(auroc_table(found))
    console.print(LEGEND, markup=False)
    for sentence in verdicts(found):
        console.print(f"- {sentence}", markup=False)
    console.print(f"results: {out}", soft_wrap=True, markup=False)
