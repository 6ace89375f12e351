"""How close decoding on the CPU comes to the limit of the machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.feature_times import feature_findings, feature_turn
from benchmarks.generation import generate
from benchmarks.interleaved import Finding, take_turns
from benchmarks.memory import measure_memory
from benchmarks.scaling import SHARES, Sizes, measure_scaling
from benchmarks.scaling_plot import scaling_figure
from benchmarks.staged_times import staged_findings, staged_turn
from benchmarks.step_parts import step_findings, step_turns, switch_findings, switch_turn
from entmtp_env.decoding import TreeDecoder
from entmtp_env.engine import Engine, get_engine
from entmtp_env.figures import save_figure
from entmtp_env.files import refuse_existing, write_text_atomically
from entmtp_env.live import LiveEnv
from entmtp_env.models import load_pretrained
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import load_prompts
from entmtp_env.provenance import describe_run
from entmtp_env.staged_env import StagedEnv
from entmtp_env.trees import load_bank
from entmtp_env.trees.presets import likely_tree
from policies.choice import large_tree, small_tree

Part = Literal["steps", "features", "staged", "switch", "generation", "memory"]

_NODES = 32


@dataclass(frozen=True)
class Cpu:
    """Measure decoding on this machine's CPU, each figure as a ratio within one run. Keep it idle meanwhile.

    Attributes:
        out: Where the figures go (JSON); the plot of --scaling goes beside it (PNG).
        overwrite: Replace figures that are there already.
        only: Parts to measure: steps, features, staged, switch, generation, memory; by default all.
        scaling: Measure how costs grow, too, or nothing else with an empty --only.
        model: Base model: a known name, a path or a Hugging Face repository.
        heads: Draft heads: "auto", "medusa" or a checkpoint.
        bank: Trees: a known name or a JSON file.
        dtype: Element type, "auto" for the fastest.
        prompts: Prompt set of whole texts.
        num_prompts: Prompts of it, the first; 0 = all.
        max_new_tokens: Token cap of a text.
        context: Committed tokens at which steps are timed.
        rounds: Rounds in which all parts of steps take turns.
        repeats: Timed steps of a turn, of which the median counts.
        memory_steps: Steps over which memory must not grow.
        capacity: KV rows; context, steps and the largest tree must fit.
        contexts: Of --scaling: committed tokens.
        nodes: Of --scaling: nodes of trees.
        batches: Of --scaling: texts recorded at a time.
        num_envs: Of --scaling: replayed episodes in lock-step.
    """

    out: Path = Path("runs/cpu.json")
    overwrite: bool = False
    only: tuple[Part, ...] = get_args(Part)
    scaling: bool = False
    model: str = "smollm2"
    heads: str = "auto"
    bank: str = "default"
    dtype: str = "auto"
    prompts: str = "humaneval"
    num_prompts: int = 10
    max_new_tokens: int = 128
    context: int = 256
    rounds: int = 15
    repeats: int = 5
    memory_steps: int = 2000
    capacity: int = 2048
    contexts: tuple[int, ...] = (128, 256, 512, 1024, 2048)
    nodes: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 96, 127)
    batches: tuple[int, ...] = (1, 4, 16, 64, 128)
    num_envs: tuple[int, ...] = (1, 16, 256, 4096, 65536)

    def __post_init__(self) -> None:
        """Refuse settings that measure nothing."""
        if self.out.suffix != ".json":
            raise ValueError(f"out must end in .json, got {self.out}")
        if not self.only and not self.scaling:
            raise ValueError(f"nothing to measure: name parts ({', '.join(get_args(Part))}) or add --scaling")
        if min(self.rounds, self.repeats, self.max_new_tokens) < 1 or self.num_prompts < 0:
            raise ValueError(
                "rounds, repeats and max_new_tokens must be at least 1, num_prompts at least 0 (all)"
            )

    @property
    def sizes(self) -> Sizes:
        """What --scaling measures at."""
        return Sizes(self.contexts, self.nodes, self.batches, self.num_envs)


def measure_cpu(config: Cpu) -> dict[str, Any]:
    """Measure, print and write.

    Returns:
        What was written: ``findings``, the ``samples`` that they were made of, ``texts`` of whole texts,
        ``scaling``, and the ``manifest``.

    Raises:
        FileExistsError: When figures are there already.
        FileNotFoundError: When the model, the heads, the bank or the prompts are not there.
        ValueError: When a setting is unknown or does not fit the model.
    """
    refuse_existing(config.out, overwrite=config.overwrite)
    sizes = config.sizes
    prompts = load_prompts(config.prompts)[: config.num_prompts or None]
    findings: list[Finding] = []
    document: dict[str, Any] = {}
    # Before this process loads a model of its own.
    if "memory" in config.only:
        memory = measure_memory(config.memory_steps, **_live_settings(config))
        findings += memory.findings(config.memory_steps)
    engine = get_engine(config.model, config.heads, config.dtype, "cpu")
    if {"steps", "features", "staged", "switch"} & {*config.only}:
        parts, document["samples"] = _measure_steps(config, engine)
        findings += parts
    if "generation" in config.only:
        # Loaded only now: a second copy of the weights does not help the steps above.
        model = load_pretrained(config.model).model.to(engine.backbone.dtype)
        trees = load_bank(config.bank).trees
        tokens = [engine.encode(prompt) for prompt in prompts]
        with progress_bar() as bar:
            task = bar.add_task("whole texts", total=len(tokens) * (1 + len(trees)))
            texts = generate(engine, model, trees, tokens, config.max_new_tokens, lambda: bar.advance(task))
        del model
        findings += texts.findings()
        document["texts"] = {
            "names": texts.names,
            "tokens": texts.tokens.tolist(),
            "seconds": texts.seconds.tolist(),
        }
    if config.scaling:
        scaling = measure_scaling(engine, prompts, sizes, config.max_new_tokens, config.repeats)
        findings += scaling.findings()
        document["scaling"] = scaling.document()
        save_figure(config.out.with_suffix(".png"), scaling_figure(scaling))
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in asdict(config).items()
    }
    document["manifest"] = describe_run() | engine.manifest | {"settings": settings}
    document["findings"] = [asdict(finding) for finding in findings]
    write_text_atomically(config.out, json.dumps(document, indent=1) + "\n")
    console = Console(width=110)
    console.print(findings_table(findings, document["manifest"]))
    console.print(f"wrote {config.out}", soft_wrap=True, highlight=False, markup=False)
    return document


def findings_table(findings: Sequence[Finding], manifest: dict[str, Any]) -> Table:
    """All figures with their quartiles and goals, a section for each part."""
    machine = manifest["machine"]
    shown = Table(
        title=escape(
            f"{manifest['model']}, {manifest['dtype']}, {machine['processor']}, {machine['threads']} threads"
        ),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("", "median", "quartiles", "unit", "goal"):
        shown.add_column(column, justify="right" if column in ("median", "quartiles") else "left")
    for before, own in zip([None, *findings], findings, strict=False):
        if before is None or before.part != own.part:
            shown.add_section()
            shown.add_row(own.part, style="bold")
        spread = f"{own.lower:.4g} to {own.upper:.4g}" if own.lower != own.upper else ""
        shown.add_row(f"  {escape(own.name)}", f"{own.value:.4g}", spread, own.unit, own.goal)
    return shown


def _measure_steps(config: Cpu, engine: Engine) -> tuple[list[Finding], dict[str, list[float]]]:
    """Steps, features and switches, all turns of the same rounds."""
    bank = load_bank(config.bank)
    pair = bank[bank.index(small_tree(bank))], bank[bank.index(large_tree(bank))]
    trees = list(bank)
    if all(len(tree) != _NODES for tree in trees):
        trees.append(likely_tree(_NODES, engine.heads.config.depth, SHARES, f"{_NODES} nodes"))
    decoder = TreeDecoder(
        engine.backbone, engine.heads, capacity=config.capacity, max_nodes=max(map(len, trees))
    )
    turns = []
    if "steps" in config.only:
        turns += step_turns(decoder, trees, config.context, config.repeats)
    if "features" in config.only:
        turns.append(feature_turn(LiveEnv(**_live_settings(config)), config.repeats))
    if "staged" in config.only:
        settings = {key: value for key, value in _live_settings(config).items() if key != "bank"}
        turns.append(staged_turn(StagedEnv(**settings), config.repeats))
    if "switch" in config.only:
        turns.append(switch_turn(decoder, pair, config.context, 4 * config.repeats))
    with progress_bar() as bar:
        task = bar.add_task("parts of a step", total=(config.rounds + 1) * len(turns))
        samples = take_turns(turns, config.rounds, lambda: bar.advance(task))
    findings = []
    if "steps" in config.only:
        findings += step_findings(samples, trees)
    if "features" in config.only:
        findings += feature_findings(samples)
    if "staged" in config.only:
        findings += staged_findings(samples)
    if "switch" in config.only:
        findings += switch_findings(samples)
    return findings, {name: values.tolist() for name, values in samples.items()}


def _live_settings(config: Cpu) -> dict[str, Any]:
    """Settings of the live environment in which features and memory are measured."""
    names = ("model", "heads", "bank", "prompts", "max_new_tokens", "dtype", "capacity")
    return {name: getattr(config, name) for name in names} | {"device": "cpu"}
