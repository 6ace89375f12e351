"""Seconds of decode steps on a GPU, against the time that reading the weights takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.random_model import Size, random_backbone, random_heads
from benchmarks.step_times import (
    ROUNDS,
    copy_bandwidth,
    step_bytes,
    time_staged,
    time_steps,
    time_switching,
)
from entmtp_env.decoding import Backbone, DraftHeads, TreeDecoder
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.heads import HeadArch
from entmtp_env.decoding.precision import choose_device, choose_dtype
from entmtp_env.decoding.staged_graph import StagedGraphDecoder
from entmtp_env.decoding.stages import Stages, default_stages
from entmtp_env.engine import get_engine
from entmtp_env.files import refuse_existing
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank, published_trees
from entmtp_env.trees.presets import likely_tree
from train.costs import costs_table

_SHARES = (0.5, 0.2, 0.1, 0.06, 0.04, 0.03, 0.02, 0.01)
_NOTE = (
    "Decode steps alone, without the environment's features, behind prompts of random tokens. Times depend "
    "on the shapes of weights, not on their values; with random weights hardly a draft is accepted."
)


@dataclass(frozen=True)
class Gpu:
    """Time autoregressive steps, drafting, verification by nodes and context, commit, and switching.

    Attributes:
        out: Where the seconds go: a cost table (JSON).
        overwrite: Replace a table that is there already.
        model: Name or path of a model, for its real weights; by default random ones are made.
        heads: Draft heads of the real model, as everywhere; of random weights the architecture, by default
            hydra-prefix.
        size: Shapes of the random weights.
        dtype: ``auto``, ``float16``, ``bfloat16`` or ``float32``.
        device: ``cuda``; on ``cpu`` the steps run without graphs.
        contexts: Committed tokens; lengths that the model cannot hold are cut to the longest it can.
        nodes: Sizes of trees to verify, besides those of the default bank.
        repeats: Timed steps of each tree at each context, in each of five rounds.
        copy_megabytes: Size of the copy that measures the bandwidth.
    """

    out: Path = Path("runs/gpu.json")
    overwrite: bool = False
    model: str = ""
    heads: str = "auto"
    size: Size = "vicuna-7b"
    dtype: str = "auto"
    device: str = "cuda"
    contexts: tuple[int, ...] = (256, 1024, 2048)
    nodes: tuple[int, ...] = (16, 32, 64, 96, 127)
    repeats: int = 6
    copy_megabytes: int = 512


def measure_gpu(config: Gpu) -> CostTable:
    """Measure, print and write.

    Returns:
        The cost table; ``manifest["gpu"]`` has what it has no place for.

    Raises:
        ValueError: When there is no such device, or a setting is unknown or does not fit the model.
        FileExistsError: When the table is there already.
        FileNotFoundError: When a real model or its heads are not to be had.
    """
    device = choose_device(config.device)
    bandwidth = copy_bandwidth(device, config.copy_megabytes << 20)
    refuse_existing(config.out, overwrite=config.overwrite)
    backbone, heads, about = _load(config, device)
    trees = _trees(config.nodes, heads.config.depth)
    max_nodes = max(len(tree) for tree in trees)
    # Of one visit: an untimed step and the timed ones, twice as many when two trees take turns.
    room = (2 * config.repeats + 1) * (heads.config.depth + 1) + 1 + max_nodes
    contexts = _cut(config.contexts, backbone.config.max_positions - room)
    settings: dict[str, Any] = {"capacity": contexts[-1] + room, "max_nodes": max_nodes}
    decoder = GraphDecoder(backbone, heads, **settings)
    pair = (trees[-1], trees[-2])
    with progress_bar() as bar:
        task = bar.add_task("timing steps", total=ROUNDS * len(contexts) * (len(trees) + 5))

        def advance() -> None:
            bar.advance(task)

        steps, prefill = time_steps(decoder, trees, contexts, config.repeats, advance)
        switching = time_switching(decoder, pair, contexts, config.repeats, advance)
        staged = StagedGraphDecoder(backbone, heads, _stages(heads), capacity=settings["capacity"])
        by_stages = time_staged(staged, contexts, config.repeats, advance)
        eager = TreeDecoder(backbone, heads, **settings)
        unaided, _ = time_steps(eager, [AUTOREGRESSIVE], contexts, config.repeats, advance)
    lower, median, upper = np.quantile(steps, (0.25, 0.5, 0.75), axis=0).round(9)
    extra = {
        "note": _NOTE,
        "copy_bytes_per_second": bandwidth,
        "floor_seconds": [step_bytes(backbone, heads, context) / bandwidth for context in contexts],
        "eager_floor_seconds": [step_bytes(backbone, None, context) / bandwidth for context in contexts],
        "eager_autoregressive_seconds": np.median(unaided[:, 0, :, 0], axis=0).tolist(),
        "switching": switching,
        "staged": {way: np.median(seconds, axis=0).tolist() for way, seconds in by_stages.items()},
    }
    table = CostTable(
        name=config.out.stem,
        trees=tuple(trees),
        contexts=np.array(contexts, dtype=np.int64),
        seconds=median[..., 0],
        lower=lower[..., 0],
        upper=upper[..., 0],
        draft_seconds=median[..., 1],
        verify_seconds=median[..., 2],
        prefill_seconds=np.median(prefill, axis=0).round(9),
        manifest=describe_run() | about | {"probe": "none", "repeats": config.repeats, "gpu": extra},
    )
    table.save(config.out)
    console = Console(width=110)
    console.print(costs_table(table))
    console.print(summary(table))
    console.print(f"wrote {config.out}", soft_wrap=True, highlight=False, markup=False)
    return table


def summary(table: CostTable) -> Table:
    """What an autoregressive step is against its floor, and the parts of a 64-node step against it."""
    extra, names = table.manifest["gpu"], [tree.name for tree in table.trees]
    step = table.seconds[names.index(AUTOREGRESSIVE.name)]
    largest = names.index("hydra-default") if "hydra-default" in names else len(names) - 1
    rest = table.seconds - table.draft_seconds - table.verify_seconds
    nodes = len(table.trees[largest]) + 1
    shown = Table(
        title=f"{table.manifest['model']}, {table.manifest['dtype']}, "
        f"copies at {extra['copy_bytes_per_second'] / 1e9:.0f} GB/s",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in ("context", *map(str, table.contexts), "goal"):
        shown.add_column(column, justify="right" if column != "context" else "left")

    def row(name: str, values: Sequence[float], goal: str, unit: float = 1.0) -> None:
        shown.add_row(name, *(f"{unit * value:.3f}" for value in values), goal)

    floor, eager_floor = np.array(extra["floor_seconds"]), np.array(extra["eager_floor_seconds"])
    row("floor of an autoregressive step, ms", floor.tolist(), "", 1e3)
    row("autoregressive step ÷ floor", (step / floor).tolist(), "1.15")
    row("the same without graphs ÷ floor", (extra["eager_autoregressive_seconds"] / eager_floor).tolist(), "")
    row(
        f"verification of {nodes} rows ÷ autoregressive",
        (table.verify_seconds[largest] / step).tolist(),
        "1.2",
    )
    row("its drafting ÷ autoregressive", (table.draft_seconds[largest] / step).tolist(), "0.25")
    row("its accept, commit and read-back ÷ autoregressive", (rest[largest] / step).tolist(), "")
    for way, seconds in extra["staged"].items():
        row(f"staged step, {way} ÷ autoregressive", (np.array(seconds) / step).tolist(), "")
    row("switching at every step ÷ staying", extra["switching"], "1")
    return shown


def _load(config: Gpu, device: torch.device) -> tuple[Backbone, DraftHeads, dict[str, str]]:
    if config.model:
        engine = get_engine(config.model, config.heads, config.dtype, config.device)
        return engine.backbone, engine.heads, engine.manifest
    backbone = random_backbone(config.size, choose_dtype(config.dtype, device), device)
    arch = "hydra-prefix" if config.heads == "auto" else config.heads
    heads = random_heads(backbone, cast("HeadArch", arch))
    return (
        backbone,
        heads,
        {
            "model": f"{config.size} with random weights",
            "heads_arch": arch,
            "dtype": str(backbone.dtype).removeprefix("torch."),
            "device": str(device),
        },
    )


def _stages(heads: DraftHeads) -> Stages:
    """The default stages, as deep as there are heads."""
    stages = default_stages()
    depth = min(heads.config.depth, stages.depth)
    shape = DraftShape(stages.shape.expand[:depth], stages.shape.children[:depth])
    budgets = tuple(budget for budget in stages.budgets if budget <= shape.nodes)
    return Stages(stages.name, shape, budgets)


def _trees(nodes: Sequence[int], depth: int) -> list[DraftTree]:
    """The default bank, the published tree cut at every depth, and trees of so many nodes."""
    published = published_trees()["hydra-default"]
    cut = [
        DraftTree(f"hydra-default to depth {d}", tuple(node for node in published.nodes if len(node) <= d))
        for d in range(1, min(depth + 1, published.depth))
    ]
    sized = [likely_tree(size, depth, _SHARES, f"{size} nodes") for size in nodes]
    return [tree for tree in (*default_bank(), *cut, *sized) if tree.depth <= depth]


def _cut(contexts: Sequence[int], longest: int) -> list[int]:
    cut = sorted({min(context, longest) for context in contexts})
    if not cut or cut[0] < 1:
        raise ValueError(
            f"contexts {tuple(contexts)}: expected 1 to {longest} tokens, which this model can hold beside "
            "the steps that are timed; change --contexts, --nodes or --repeats"
        )
    return cut
