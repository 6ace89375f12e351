"""``python -m eval paper``: the main table of EntMTP (arXiv 2606.27550), for any model."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from entmtp_env.figures import save_figure
from entmtp_env.prompt_sources import PromptsUnavailableError
from entmtp_env.prompts import load_prompts
from eval.compare import (
    Compare,
    check_settings,
    describe_contests,
    make_contest,
    print_end,
    result_console,
    result_path,
)
from eval.contest import Contest, check_excluded, run_contests
from eval.environment import enter_policies, environment_manifest
from eval.interleave import Entrant
from eval.losslessness import load_losslessness
from eval.losslessness_table import loss_line
from eval.medusa_row import MEDUSA, MEDUSA_TREE, make_medusa_env, medusa_heads
from eval.paper_summary import HYDRA, PaperResult, method, plain_paper, summarise_paper, task_name
from eval.paper_table import LEGEND, claim_line, paper_table
from eval.plot import comparison_figure
from eval.results import ResultFolder
from eval.statistics import REFERENCE
from policies.registry import make_named_policy


@dataclass(frozen=True)
class Paper(Compare):
    """The paper's main table: Vanilla, Medusa, Hydra, EntMTP*, EntMTP^τ, EntMTP-l, staged and learned ones.

    As in the paper: typical acceptance with T = 0.7, ε = 0.09, α = 0.3, 100 prompts a task of at most 1400
    tokens, 256 new tokens, seed 123, prefill included, one warm-up; here the rows are interleaved prompt by
    prompt. Prints a table per task with the paper's numbers beside ours, and its claims with what holds here.
    Tasks that are not on this machine are named and left out. Writes what compare writes. Ctrl-C stops it
    with the tables of what was finished; --resume goes on from there. After python -m eval losslessness,
    --resume prints the claim about perplexity, too.

    EntMTP* and EntMTP^τ are those of each task: calibrate them on its other half first, as in
    python -m train calibrate --prompts gsm8k:calibration --acceptance typical --out runs/paper/gsm8k

    Example: python -m eval paper --policies static@runs/paper/{task}/static.json
    threshold@runs/paper/{task}/threshold.json ladder@runs/paper/{task}/ladder.json learned@runs/ppo.npz

    Attributes:
        policies: Rows beside Vanilla, Medusa and Hydra, as in compare; {task} stands for the task's name. In
            the table, a static@file is EntMTP*, a threshold@file EntMTP^τ and a ladder@file EntMTP-l; the
            paper has none of the others, nor of these without calibration.
        prompts: The tasks: prompt sets as in compare.
        num_prompts: Prompts of each set, the first after a seeded shuffle; 0 = all.
        turns: When a row makes way for the next: after each text, or after each step.
        baseline: The policy that the others are divided by: one of the rows, or auto for EntMTP*, or Hydra
            without it.
        medusa_heads: Medusa heads: a checkpoint, or auto for those that ship for the model; the row is left
            out when none do.
        acceptance: Acceptance rule.
        max_new_tokens: Cap on the tokens of a text.
        seed: Seed of prompt choice, sampling, order and bootstrap.
    """

    policies: tuple[str, ...] = (
        "static:tree-6x3",
        "threshold",
        "ladder",
        "staged-threshold",
        "eagle2",
        "eagle2-cost-aware",
        "prompt-lookup",
    )
    prompts: tuple[str, ...] = (
        "humaneval:evaluation",
        "gsm8k:evaluation",
        "sharegpt:evaluation",
        "litbench:evaluation",
        "arc:evaluation",
    )
    num_prompts: int = 100
    max_prompt_tokens: int = 1400
    baseline: str = "auto"
    medusa_heads: str = "auto"
    acceptance: str = "typical:temperature=0.7,epsilon=0.09,alpha=0.3"
    max_new_tokens: int = 256
    seed: int = 123


def paper(config: Paper) -> PaperResult:
    """Run the table, print it and write its files.

    Raises:
        ValueError: When a setting is out of range or unknown, the Medusa heads are of another architecture,
            a set has no prompt short enough, or the run to resume was another one.
        FileNotFoundError: When a model, checkpoint, bank, prompt file or policy file is missing, or none of
            the tasks is to be had.
        FileExistsError: When the result folder holds results already.
        EvaluationError: When an episode ends in an error.
        KeyboardInterrupt: On Ctrl-C, after the tables of what was finished.
    """
    check_settings(config)
    if config.baseline == "auto":
        calibrated = (row for row in config.policies if method(row) == "EntMTP*")
        config = dataclasses.replace(config, baseline=next(calibrated, HYDRA))
    out = result_path(config, "paper")
    console = result_console()
    with contextlib.ExitStack() as stack:
        tasks, left_out = _available(config)
        if not medusa_heads(dataclasses.asdict(config)):
            left_out["Medusa"] = f"no Medusa heads ship for {config.model!r}; pass medusa_heads"
        _print_left_out(console, left_out)
        contests = {prompts: _prepare(config, prompts, stack) for prompts in tasks}
        check_excluded(contests)
        folder = ResultFolder(out, config.overwrite, config.resume)
        manifest = folder.continued(_manifest(config, contests, left_out))
        for contest in contests.values():
            contest.warm_up()
        stack.enter_context(folder)
        folder.write_json("manifest.json", manifest)
        outcome = run_contests(contests, folder, config.seed)
        result = summarise_paper(
            outcome.sets, left_out, config.baseline, config.bootstrap_samples, config.seed
        )
        if outcome.complete:
            folder.write_json("summary.json", plain_paper(result, config.baseline))
            trees = next(iter(contests.values())).trees
            save_figure(out / "plot.png", comparison_figure(result.summaries, trees))
    for prompts, rows in result.summaries.items():
        methods = {row.policy: name for row in rows if (name := method(row.policy))}
        console.print(paper_table(task_name(prompts), prompts, rows, methods, config.baseline))
    for prompts, claims in result.claims.items():
        for claim in claims:
            console.print(claim_line(task_name(prompts), claim), highlight=False, markup=False)
    _print_losses(console, out)
    console.print(LEGEND, highlight=False, markup=False)
    _print_left_out(console, left_out)
    print_end(console, config, out, outcome)
    return result


def _print_losses(console: Console, out: Path) -> None:
    try:
        scored = load_losslessness(out)
    except ValueError as error:
        # What was decoded since is no reason to keep the tables back.
        console.print(f"no perplexities: {error}", soft_wrap=True, highlight=False, markup=False)
        return
    for prompts, losses in scored.items():
        for row in losses:
            if row.policy != REFERENCE and (name := method(row.policy)):
                console.print(loss_line(task_name(prompts), name, row), highlight=False, markup=False)


def _available(config: Paper) -> tuple[list[str], dict[str, str]]:
    """The prompt sets that are here, and why the others are not."""
    tasks, missing = [], {}
    for prompts in dict.fromkeys(config.prompts):
        try:
            load_prompts(prompts)
        except PromptsUnavailableError as error:
            missing[prompts] = str(error)
        else:
            tasks.append(prompts)
    if not tasks:
        raise FileNotFoundError(f"none of the tasks is on this machine: {'; '.join(missing.values())}")
    return tasks, missing


def _prepare(config: Paper, prompts: str, stack: contextlib.ExitStack) -> Contest:
    task, settings = task_name(prompts), dataclasses.asdict(config)
    specs = dict.fromkeys((REFERENCE, HYDRA, config.baseline, *config.policies))
    rows = {s: s.replace("{task}", task) for s in specs}
    entrants = enter_policies(settings, prompts, rows, stack, config.turns)
    if medusa_heads(settings):
        env = make_medusa_env(settings, prompts, stack)
        row = Entrant(env, make_named_policy(f"static:{MEDUSA_TREE}", env))
        entrants = {REFERENCE: entrants[REFERENCE], MEDUSA: row} | entrants
    return make_contest(config, prompts, entrants)


def _manifest(config: Paper, contests: Mapping[str, Contest], left_out: Mapping[str, str]) -> dict[str, Any]:
    manifest = describe_contests(config, contests)
    rows = list(next(iter(contests.values())).entrants)
    medusa: dict[str, Any] = {}
    for prompts, contest in contests.items():
        if MEDUSA in contest.entrants:
            medusa[prompts] = environment_manifest(contest.entrants[MEDUSA].env)
    # Under the name that those who read results look for.
    manifest["settings"]["policies"] = rows
    return manifest | {"medusa_environments": medusa, "left_out": dict(left_out)}


def _print_left_out(console: Console, left_out: Mapping[str, str]) -> None:
    for name, reason in left_out.items():
        console.print(f"left out: {name}: {reason}", soft_wrap=True, highlight=False, markup=False)
