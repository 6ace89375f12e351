"""``python -m eval trace PROMPT``: one text, step by step, with the tree of each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.files import write_text_atomically
from eval.contest import Contest
from eval.environment import enter_policies
from eval.interleave import Run
from eval.page import render_page, trace_data, tree_colours
from eval.trace_text import trace_text
from eval.watch import watch_episode


@dataclass(frozen=True)
class Trace:
    """Write one text and show which tree wrote which part of it, and how many drafts each step accepted.

    Prints the text with a colour per tree, its steps told apart by underlining, and of staged policies how
    many nodes the tree of each step had at each depth; with --out also as a page, where the tree, the accept
    length and the time of a step stand under the cursor.

    Example: python -m eval trace "Why is the sky blue?" --policies threshold hydra-default --out sky.html

    Attributes:
        prompt: What to answer, or the id of a prompt when --prompts names a set.
        prompts: The set that the prompt is from: chat, math, stories, humaneval or a .jsonl file.
        policies: Policies to write the text with: name, name:key=value,..., static:<tree>, name@file.json, or
            your own package.module:Class; each runs in the environment that it is made for.
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        bank: Bank of trees: default, smollm2-pooled or another that ships, or a JSON file.
        stages: What staged policies may draft and verify: default, smollm2-staged, or a JSON file.
        acceptance: Acceptance rule: greedy, sample:temperature=T or typical:temperature=T,epsilon=E,alpha=A.
        max_new_tokens: Cap on the tokens of the text.
        probe: What is drafted before a decision: none, first, chain or union.
        features: Feature groups to observe, separated by commas, or all; staged policies have no group heads.
        capacity: Rows of the KV cache; prompt, text and the largest tree must fit.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda-graphs (steps as captured CUDA graphs).
        seed: Seed of the sampling.
        out: An HTML page to write, replacing the one that is there.
        env_id: Gymnasium id for the policies that choose trees of the bank; an environment of your own
            (module:Id) takes the keyword arguments of EntMTP/Live-v0.
    """

    prompt: Annotated[str, tyro.conf.Positional]
    prompts: str | None = None
    policies: tuple[str, ...] = ("threshold",)
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    stages: str = "default"
    acceptance: str = "greedy"
    max_new_tokens: int = 128
    probe: Probe = "none"
    features: str = "all"
    capacity: int = 2048
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    out: Path | None = None
    env_id: str = "EntMTP/Live-v0"


def trace(config: Trace) -> dict[str, Run]:
    """Write the text with each policy, print it, and make the page.

    Returns:
        Runs by policy.

    Raises:
        ValueError: When a setting is out of range or unknown, or the set has no such prompt.
        FileNotFoundError: When a model, checkpoint, bank, stages, prompt file or policy file is missing.
    """
    if not config.policies:
        raise ValueError("no policy: pass one or more to policies, such as threshold")
    with contextlib.ExitStack() as stack:
        prompts, prompt_id = _prompt(config, stack)
        rows = {spec: spec for spec in config.policies}
        contest = Contest(
            enter_policies(dataclasses.asdict(config), prompts, rows, stack), {prompt_id: config.seed}
        )
        contest.warm_up()
        runs = {
            spec: Run(spec, config.seed, *watch_episode(own.env, own.policy, prompt_id, config.seed))
            for spec, own in contest.entrants.items()
        }
    colours = tree_colours(runs.values())
    console = Console(width=None if sys.stdout.isatty() else 100)
    for run in runs.values():
        console.print(trace_text(run, colours), soft_wrap=True)
    if config.out is not None:
        write_text_atomically(config.out, _page(config, runs, colours))
        console.print(f"page: {config.out}", soft_wrap=True, highlight=False, markup=False)
    return runs


def _prompt(config: Trace, stack: contextlib.ExitStack) -> tuple[str, str]:
    """The prompt's set, made for it when it has none, and its id."""
    if config.prompts is not None:
        return config.prompts, config.prompt
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "prompts.jsonl"
    line = json.dumps({"id": "prompt", "prompt": config.prompt})
    path.write_text(line + "\n", encoding="utf-8")
    return str(path), "prompt"


def _page(config: Trace, runs: Mapping[str, Run], colours: Mapping[str, str]) -> str:
    data = trace_data({spec: [run] for spec, run in runs.items()}, colours)
    return render_page("trace.html", title=_title(config.prompt), config=config, data=data, colours=colours)


def _title(prompt: str, length: int = 80) -> str:
    title = " ".join(prompt.split())
    return title if len(title) <= length else f"{title[: length - 1]}…"
