"""``python -m eval trace PROMPT``: one text, step by step, with the tree of each."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.files import write_text_atomically
from eval.environment import make_live_env
from eval.interleave import Run, warm_up
from eval.page import render_page, trace_data, tree_colours
from eval.trace_text import trace_text
from eval.watch import watch_episode
from policies import SchedulingEnv
from policies.registry import make_named_policy


@dataclass(frozen=True)
class Trace:
    """Write one text and show which tree wrote which part of it, and how many drafts each step accepted.

    Prints the text with a colour per tree, its steps told apart by underlining; with --out also as a page,
    where the tree, the accept length and the time of a step stand under the cursor.

    Example: python -m eval trace "Why is the sky blue?" --policies threshold hydra-default --out sky.html

    Attributes:
        prompt: What to answer, or the id of a prompt when --prompts names a set.
        prompts: The set that the prompt is from: chat, math, stories, humaneval or a .jsonl file.
        policies: Policies to write the text with: name, name:key=value,..., static:<tree>, name@file.json, or
            your own package.module:Class.
        model: Base model: a known name, a folder or a Hugging Face repository.
        heads: Draft heads: auto, medusa or a checkpoint.
        bank: Bank of trees: default, or a JSON file.
        acceptance: Acceptance rule: greedy, sample:temperature=T or typical:temperature=T,epsilon=E,alpha=A.
        max_new_tokens: Cap on the tokens of the text.
        probe: What is drafted before a decision: none, first, chain or union.
        features: Feature groups to observe, separated by commas, or all.
        capacity: Rows of the KV cache; prompt, text and the largest tree must fit.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
        seed: Seed of the sampling.
        out: An HTML page to write, replacing the one that is there.
        env_id: Gymnasium id; an environment of your own (module:Id) takes the same keyword arguments.
    """

    prompt: Annotated[str, tyro.conf.Positional]
    prompts: str | None = None
    policies: tuple[str, ...] = ("threshold",)
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
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
        FileNotFoundError: When a model, checkpoint, bank, prompt file or policy file is missing.
    """
    if not config.policies:
        raise ValueError("no policy: pass one or more to policies, such as threshold")
    with _environment(config) as (env, prompt_id):
        policies = {spec: make_named_policy(spec, env) for spec in config.policies}
        warm_up(env, policies, prompt_id)
        runs = {
            spec: Run(spec, config.seed, *watch_episode(env, policy, prompt_id, config.seed))
            for spec, policy in policies.items()
        }
    colours = tree_colours(runs.values())
    console = Console(width=None if sys.stdout.isatty() else 100)
    for run in runs.values():
        console.print(trace_text(run, colours), soft_wrap=True)
    if config.out is not None:
        write_text_atomically(config.out, _page(config, runs, colours))
        console.print(f"page: {config.out}", soft_wrap=True, highlight=False, markup=False)
    return runs


@contextlib.contextmanager
def _environment(config: Trace) -> Iterator[tuple[SchedulingEnv, str]]:
    """An environment that has the prompt, and the prompt's id."""
    with contextlib.ExitStack() as stack:
        prompts, prompt_id = config.prompts, config.prompt
        if prompts is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            prompts, prompt_id = str(folder / "prompts.jsonl"), "prompt"
            line = json.dumps({"id": prompt_id, "prompt": config.prompt})
            Path(prompts).write_text(line + "\n", encoding="utf-8")
        env = make_live_env(dataclasses.asdict(config), prompts, config.env_id)
        stack.callback(env.close)
        yield env, prompt_id


def _page(config: Trace, runs: Mapping[str, Run], colours: Mapping[str, str]) -> str:
    data = trace_data({spec: [run] for spec, run in runs.items()}, colours)
    return render_page("trace.html", title=_title(config.prompt), config=config, data=data, colours=colours)


def _title(prompt: str, length: int = 80) -> str:
    title = " ".join(prompt.split())
    return title if len(title) <= length else f"{title[: length - 1]}…"
