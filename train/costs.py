"""``python -m train costs``: what a decode step costs on this machine, for every tree and context length."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from entmtp_env.decoding.stages import Stages, load_stages
from entmtp_env.engine import Engine, get_engine
from entmtp_env.features import Probe
from entmtp_env.files import refuse_existing
from entmtp_env.live import LiveEnv
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import Prompt, load_prompts
from entmtp_env.provenance import describe_run
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.staged_env import StagedEnv
from entmtp_env.trees import TopologyBank, load_bank
from train.drift import drift
from train.timed_steps import TimedStep, steps_of_bank, steps_of_stages

_GROWTH = 32
"""Tokens by which a text may grow beyond its context length before it begins again, or 1/16 of the length
if that is more: a long prompt takes many steps' time to read."""
_ROUNDS = 3
"""Rounds of all trees at one context length before the next has its turn: prompts take time to read, too."""
_PASSAGES = 4
"""Texts for each context length."""
_LENGTHS = (64, *(256 << i for i in range(16)))


@dataclass(frozen=True)
class Costs:
    """Measure the seconds of a live decode step for every tree and context length, on this machine.

    What is timed is what a step of EntMTP/Live-v0 counts, or with stages one of EntMTP/Staged-v0, for every
    depth and number of nodes. Prints the medians and writes a cost table, which a replay prices its steps
    with. Keep the machine idle meanwhile.

    Attributes:
        out: The table to write (.json); its name is that of the file.
        model: Base model: a known name, a path or a Hugging Face repository.
        heads: Draft heads: "auto", "medusa" or a checkpoint.
        bank: Trees to measure: a known name or a JSON file.
        stages: Measure staged drafts instead: default, smollm2-staged or a JSON file; their table is for
            staged policies.
        prompts: Prompt set whose text fills the contexts.
        acceptance: Acceptance rule.
        probe: What is drafted before each decision: none, first, chain or union.
        contexts: Context lengths in tokens; by default 64, 256, 512, 1024, ... and the longest that fits.
        repeats: Timed steps for each tree and context length.
        dtype: Element type, "auto" for the fastest.
        device: "auto", "cpu", "cuda" or "cuda-graphs".
        capacity: KV rows; context, a few steps and the largest tree must fit.
        overwrite: Replace the table when it is there already.
    """

    out: Path
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    stages: str = ""
    prompts: str = "chat"
    acceptance: str = "greedy"
    probe: Probe = "none"
    contexts: tuple[int, ...] = ()
    repeats: int = 30
    dtype: str = "auto"
    device: str = "auto"
    capacity: int = 2048
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that measure nothing."""
        if self.out.suffix != ".json":
            raise ValueError(f"out must end in .json, got {self.out}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, got {self.repeats}")
        if self.stages and self.probe != "none":
            raise ValueError(f"probe={self.probe!r}: in stages nothing is probed; leave it at none")


def measure_costs(config: Costs, clock: Callable[[], float] = time.perf_counter) -> CostTable:
    """Measure, print and write a cost table.

    Context lengths and trees take turns after every step, in a fresh random order each time, and what all
    trees have in common at one time is taken out as drift of the machine (:mod:`train.drift`).

    Args:
        config: What to measure.
        clock: Seconds of a monotonic clock; tests inject their own.

    Returns:
        The table; its contexts are the tokens of the prompts as the model reads them.

    Raises:
        FileExistsError: When the table is there already.
        FileNotFoundError: When the model, the heads, the bank, the stages or the prompts are not there.
        ValueError: When a setting is unknown or a context length does not fit.
        RuntimeError: When a step fails, as on a device out of memory.
    """
    refuse_existing(config.out, overwrite=config.overwrite)
    bank = load_stages(config.stages) if config.stages else load_bank(config.bank)
    subjects = steps_of_stages(bank) if isinstance(bank, Stages) else steps_of_bank(bank)
    texts = load_prompts(config.prompts)
    engine = get_engine(config.model, config.heads, config.dtype, config.device)
    passages = min(-(-config.repeats // _ROUNDS), _PASSAGES)
    prompts = _cut_prompts(engine, texts, _choose_contexts(config, bank), passages)
    lengths = np.array([[len(engine.encode(prompt)) for prompt in own] for own in prompts])
    contexts = np.rint(lengths.mean(1)).astype(np.int64)
    if (np.diff(contexts) < 1).any():
        raise ValueError(f"contexts came out as {contexts.tolist()} tokens; choose them further apart")

    env = _make_env(config, [prompt for own in prompts for prompt in own])
    env.clock = clock
    # A text that ended would have to begin again before all trees had their turn.
    env.decoder.eos_token_ids = frozenset()
    with Console(stderr=True).status("warming up every tree"):
        env.warm_up()
    prompt_ids = [[prompt.prompt_id for prompt in own] for own in prompts]
    steps, prefill = _measure(env, subjects, prompt_ids, config.repeats)

    steady = steps / drift(steps[..., 0])[:, None, :, None]
    lower, median, upper = np.quantile(steady, (0.25, 0.5, 0.75), axis=0).round(9)
    table = CostTable(
        name=config.out.stem,
        trees=tuple(subject.tree for subject in subjects),
        contexts=contexts,
        seconds=median[..., 0],
        lower=lower[..., 0],
        upper=upper[..., 0],
        draft_seconds=median[..., 1],
        verify_seconds=median[..., 2],
        prefill_seconds=np.array([np.median(own) for own in prefill]).round(9),
        manifest=describe_run() | env.manifest | {"prompts": config.prompts, "repeats": config.repeats},
    )
    table.save(config.out)
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(costs_table(table))
    console.print(f"wrote {config.out}", soft_wrap=True, highlight=False, markup=False)
    return table


def costs_table(table: CostTable) -> Table:
    """Medians in milliseconds, and their ratios to an autoregressive step at the same context length."""
    shown = Table(
        title=escape(f"{table.name}: ms of a decode step (× autoregressive) by context length"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    shown.add_column("tree", overflow="fold")
    for context in table.contexts:
        shown.add_column(str(context), justify="right", no_wrap=True)
    reference = table.seconds[[len(tree) for tree in table.trees].index(0)]
    for tree, row in zip(table.trees, table.seconds, strict=True):
        cells = (f"{1e3 * s:.2f} ({s / r:.2f})" for s, r in zip(row, reference, strict=True))
        shown.add_row(escape(tree.name), *cells)
    shown.add_section()
    shown.add_row("prefill", *(f"{1e3 * seconds:.1f}" for seconds in table.prefill_seconds))
    return shown


def _choose_contexts(config: Costs, bank: TopologyBank | Stages) -> list[int]:
    """The lengths asked for, or a few up to the longest that fits."""
    # The last step begins at most so many tokens behind the context and must not be cut short.
    behind = _growth(config.capacity) + bank.depth + 1
    longest = config.capacity - behind - (1 + bank.max_nodes)
    chosen = sorted({*config.contexts}) or [*(n for n in _LENGTHS if 1.5 * n <= longest), longest]
    if not 0 < chosen[0] <= chosen[-1] <= longest:
        raise ValueError(
            f"contexts of {chosen[0]} to {chosen[-1]} tokens: with {config.capacity} KV rows and trees of "
            f"{bank.max_nodes} nodes they must be 1 to {longest}; change the contexts or raise the capacity"
        )
    return chosen


def _growth(context: int) -> int:
    return max(_GROWTH, context // 16)


def _cut_prompts(
    engine: Engine, texts: Sequence[Prompt], contexts: Sequence[int], passages: int
) -> list[list[Prompt]]:
    """So many prompts of about each of ``contexts`` tokens, chat template included."""

    def encode(text: str) -> list[int]:
        return list(engine.tokenizer.encode(text, add_special_tokens=False))

    template = len(engine.encode(Prompt("", texts[0].text))) - len(encode(texts[0].text))
    if contexts[0] <= template:
        raise ValueError(
            f"a context of {contexts[0]} tokens is too short: the chat template takes {template}"
        )
    tokens = encode("\n\n".join(prompt.text for prompt in texts))
    begins = [i * len(tokens) // passages for i in range(passages)]
    return [
        [
            Prompt(f"{n}-{i}", engine.decode(np.resize(np.roll(tokens, -begin), n - template).tolist()))
            for i, begin in enumerate(begins)
        ]
        for n in contexts
    ]


def _make_env(config: Costs, prompts: Sequence[Prompt]) -> LiveEnv:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "contexts.jsonl"
        lines = (json.dumps({"id": prompt.prompt_id, "prompt": prompt.text}) for prompt in prompts)
        path.write_text("\n".join(lines), encoding="utf-8")
        settings: dict[str, Any] = {
            "model": config.model,
            "heads": config.heads,
            "prompts": str(path),
            "acceptance": config.acceptance,
            "max_new_tokens": config.capacity,
            "dtype": config.dtype,
            "device": config.device,
            "capacity": config.capacity,
        }
        if config.stages:
            return StagedEnv(stages=config.stages, **settings)
        return LiveEnv(bank=config.bank, probe=config.probe, **settings)


def _measure(
    env: LiveEnv, subjects: Sequence[TimedStep], prompt_ids: Sequence[Sequence[str]], repeats: int
) -> tuple[npt.NDArray[np.float64], list[list[float]]]:
    """Time every tree at every context.

    Args:
        env: Where to step.
        subjects: K steps.
        prompt_ids: For each context, the prompts that serve it in turn.
        repeats: Steps of each tree at each context.

    Returns:
        Seconds of whole step, draft and verification, ``(repeats, K, C, 3)``, and of the prefills by context.
    """
    trees, contexts = len(subjects), len(prompt_ids)
    steps = np.zeros((repeats, trees, contexts, 3))
    prefill: list[list[float]] = [[] for _ in prompt_ids]
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    with progress_bar() as bar:
        task = bar.add_task("timing steps", total=repeats * trees * contexts)
        for visit, begin in enumerate(range(0, repeats, _ROUNDS)):
            for c in rng.permutation(contexts):
                options, latest = {"prompt_id": prompt_ids[c][visit % len(prompt_ids[c])]}, -1
                rounds = range(begin, min(begin + _ROUNDS, repeats))
                for repeat, k in ((repeat, k) for repeat in rounds for k in rng.permutation(trees)):
                    if env.decoder.length > latest:
                        _, info = env.reset(options=options)
                        prefill[c].append(info["prefill_seconds"])
                        latest = env.decoder.length + _growth(env.decoder.length)
                        # The first step behind a prefill finds other things in the caches.
                        subjects[int(rng.integers(trees))].run(env)
                    steps[repeat, k, c] = subjects[k].run(env)
                    bar.advance(task)
    return steps, prefill
