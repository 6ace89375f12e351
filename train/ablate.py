"""``python -m train ablate``: what one choice of a scheduler's training is worth, over several seeds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console

from entmtp_env.files import write_text_atomically
from entmtp_env.provenance import describe_run
from entmtp_env.trees import TopologyBank, load_bank
from train.ablate_cell import Cell, TrainBy
from train.ablate_table import LEGEND, ablation_table, markdown
from train.rl import SchedulerTraining
from train.rl_texts import split_texts

What = Literal["reward", "features", "probe", "bank-size"]

_CELLS = {
    "reward": ("throughput_advantage", "tokens_per_second", "step_tokens_per_second"),
    "features": ("all", "base", "heads", "history"),
    "probe": ("none", "first", "chain", "union"),
}
_HISTORY = "entropy,acceptance"
_BY_RL = ("reward", "algo", "steps", "envs", "hidden", "evaluate_every")
"""Settings that supervision has no use for, besides those of the algorithm."""


@dataclass(frozen=True, kw_only=True)
class Ablation(SchedulerTraining):
    """Train schedulers that differ in one choice, several seeds of each, and compare them on held-out texts.

    Each value of the choice is a cell. Every fourth training text chooses which policy of a training by rl is
    kept, so that the held-out texts judge only. Run the same command again after an interruption: seeds that
    are done are read from <out>/<what>/<cell>.jsonl, also when it then asks for more seeds or other cells.

    Prints and writes to <out>/<what>.md and .json, for each cell, the interquartile mean over seeds and texts
    of the throughput over that of one tree, with its stratified bootstrap interval (arXiv 2108.13264).

    Example: python -m train ablate --what reward --recordings chat:calibration math:calibration
    --held-out chat:evaluation math:evaluation --out runs/ablation

    Attributes:
        what: The choice: the reward; the groups of features; what is drafted before each decision (probe);
            how many trees the bank has (bank-size), of which a smaller one has the first ones.
        recordings: Texts to train on, pooled: chat, math, ... or .npz files, or halves of them, as in
            chat:calibration. The probe union needs such as were made with train record --candidates.
        out: Folder for results and policies.
        cells: Values to try, by default: each reward; all, base, heads, history (that is entropy,acceptance);
            none, first, chain, union; all trees, and each smaller power of two. The first one's best single
            tree is what throughputs are divided by.
        seeds: Seeds of each cell.
        train_by: rl, with --algo and its settings; or by supervision, as train value has it, with its
            defaults: value, imitation, improvement.
        held_out: Recordings of other texts; by default every fourth text of the recordings is held out.
        costs: Seconds of a step: auto, a cost table, or analytic:base=B,node=N,depth=D. {probe} in it stands
            for the probe, as tables are measured with one: runs/costs-{probe}.json. A formula charges nothing
            for a probe.
        steps: Decode steps to train each seed of a cell for.
        evaluate_every: Decode steps between trials on the texts that choose.
        seed: First seed.
    """

    what: What
    cells: tuple[str, ...] = ()
    seeds: int = 5
    train_by: TrainBy = "rl"
    steps: int = 300_000
    evaluate_every: int = 30_000

    def __post_init__(self) -> None:
        """Refuse settings that compare nothing, or that would have no effect."""
        super().__post_init__()
        if self.what not in get_args(What):
            raise ValueError(f"unknown what {self.what!r}; choose one of {', '.join(get_args(What))}")
        if self.train_by not in get_args(TrainBy):
            raise ValueError(
                f"unknown train_by {self.train_by!r}; choose one of {', '.join(get_args(TrainBy))}"
            )
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        if self.drafts:
            raise ValueError("only schedulers of a bank are ablated; drop drafts and stages")
        if self.what == "reward" and self.train_by != "rl":
            raise ValueError("supervision has no reward; train by rl to ablate the reward")
        defaults = {own.name: own.default for own in fields(self)} | {self.algo: type(self.settings)()}
        changed = [name for name, plain in defaults.items() if getattr(self, name) != plain]
        if self.what in changed:
            raise ValueError(f"{self.what} would have no effect; name the values to try as cells")
        ignored = ("overwrite",) if self.train_by == "rl" else ("overwrite", *_BY_RL, self.algo)
        if wrong := [name for name in ignored if name in changed]:
            raise ValueError(f"{', '.join(wrong)} would have no effect with train_by {self.train_by}")
        if len(set(self.cells)) < len(self.cells):
            raise ValueError(f"cells must differ, got {', '.join(self.cells)}")

    @property
    def folder(self) -> Path:
        """Where the cells' files go."""
        return self.out / self.what

    def trainings(self) -> dict[str, SchedulerTraining]:
        """Training of the first seed of each cell; banks of other sizes are written.

        Raises:
            FileNotFoundError: When there is no such bank.
            ValueError: When the bank has not so many trees.
        """
        if self.what == "bank-size":
            bank = load_bank(self.bank)
            powers = [2**i for i in range(len(bank).bit_length(), 0, -1) if 2**i < len(bank)]
            sizes = self.cells or tuple(map(str, (len(bank), *powers)))
            return {size: self._training(size, bank=self._prefix(bank, size)) for size in sizes}
        cells = self.cells or _CELLS[self.what]
        values = {cell: _HISTORY if (self.what, cell) == ("features", "history") else cell for cell in cells}
        return {cell: self._training(cell, **{self.what: value}) for cell, value in values.items()}

    def _training(self, cell: str, **changes: Any) -> SchedulerTraining:
        own = {field.name: getattr(self, field.name) for field in fields(SchedulerTraining)} | changes
        own["costs"] = self.costs.replace("{probe}", own["probe"])
        return SchedulerTraining(**own | {"out": self.folder / f"{cell}.npz"})

    def _prefix(self, bank: TopologyBank, size: str) -> str:
        """File of a bank of the empty tree and the first of the others."""
        if not size.isdigit() or not 2 <= int(size) <= len(bank):
            raise ValueError(
                f"bank {bank.name!r} has {len(bank)} trees; cells must be 2 to that, got {size!r}"
            )
        path = self.folder / f"{size}.json"
        # The empty tree first, as every bank has it; the order of the rest stays.
        trees = sorted(bank, key=lambda tree: len(tree) > 0)[: int(size)]
        TopologyBank(trees, name=f"{bank.name}-{size}").save(path)
        return str(path)


def ablate(config: Ablation) -> list[dict[str, Any]]:
    """Train what is not done yet, print the table, and write it.

    Returns:
        A row for each cell, as :meth:`~train.ablate_cell.Cell.row` describes it.

    Raises:
        FileNotFoundError: When a recording, the costs or the bank is not there.
        ValueError: When a setting is unknown, recordings, costs and bank do not fit together, a held-out text
            is trained on, what is done was done with other settings, or an extra is not installed.
    """
    texts = config.folder / "texts"
    own, others = split_texts(config.recordings, config.held_out, texts)
    parts = split_texts(own, (), texts / "own")
    # All of them first: a fault must not show after hours.
    cells = {
        name: _cell(config, name, training, own, others) for name, training in config.trainings().items()
    }
    seeds = range(config.seed, config.seed + config.seeds)
    runs = [(name, seed) for seed in seeds for name in cells if not cells[name].done(seed)]
    log, began = Console(stderr=True), time.monotonic()
    for i, (name, seed) in enumerate(runs):
        spent = time.monotonic() - began
        left = f", about {timedelta(seconds=round(spent / i * (len(runs) - i)))} left" if i else ""
        log.print(f"{config.what} {name}, seed {seed}: run {i + 1} of {len(runs)}{left}", highlight=False)
        cells[name].run(seed, *parts)
    return _report(config, cells, seeds)


def _cell(
    config: Ablation,
    name: str,
    training: SchedulerTraining,
    own: tuple[str, ...],
    others: tuple[str, ...],
) -> Cell:
    try:
        return Cell(training, config.train_by, own, others)
    except ValueError as error:
        raise ValueError(
            f"{config.what} {name}: {error} (or leave it out: --cells with the others)"
        ) from error


def _report(config: Ablation, cells: dict[str, Cell], seeds: Sequence[int]) -> list[dict[str, Any]]:
    first = next(iter(cells.values()))
    static = first.own.best_static
    reference = first.static_rates(static.options["tree"])
    rows = [{"cell": name, **cell.row(seeds, reference)} for name, cell in cells.items()]
    record = describe_run() | {
        "settings": config.record,
        "static": static.spec,
        "train": first.own.record,
        "held_out": first.held_out.record,
        "cells": rows,
    }
    path = config.out / config.what
    write_text_atomically(path.with_suffix(".json"), json.dumps(record, indent=1) + "\n")
    table = ablation_table(config.what, rows)
    legend = LEGEND.format(static=static.spec, texts=len(reference), seeds=config.seeds)
    write_text_atomically(path.with_suffix(".md"), f"{markdown(table)}\n{legend}\n")
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(table)
    console.print(legend, markup=False)
    console.print(f"wrote {path}.json and .md", soft_wrap=True, markup=False)
    return rows
