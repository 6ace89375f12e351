"""``python -m train trees``: trees that fit a task and a machine (EntMTP, arXiv 2606.27550)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from entmtp_env.figures import save_figure
from entmtp_env.files import write_text_atomically
from entmtp_env.provenance import describe_run
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, published_trees
from entmtp_env.trees.best import best_trees_by_depth
from entmtp_env.trees.walk import accept_lengths
from train.frontier_plot import frontier_figure
from train.frontier_table import LEGEND, frontier_table, optimality_table
from train.journal import Journal
from train.measured_tree import Kind, MeasuredTree, most_biased, throughput_hull
from train.search_live import LiveTexts
from train.search_replay import RecordedTexts
from train.tree_search import search


@dataclass(frozen=True)
class Trees:
    """Search the draft trees that fit a task and a machine.

    Grows a tree node by node (the acceptance frontier), then runs every tree of it on its own, with the
    published trees and autoregressive decoding beside it, for its true accept length and its throughput.
    Writes frontier.json (the numbers), frontier.png and trees.json (a bank of all those trees). Run the same
    command again after an interruption: it goes on where it stopped. A larger budget goes on with the search.

    Example: python -m train trees --source replay --recordings chat:calibration --out runs/trees-chat

    Attributes:
        out: Folder for the results.
        method: greedy: the paper's Algorithm 1; optimal: also the best tree of each size and depth by dynamic
            programming, from a recording only.
        source: live: on the decoder, under any acceptance rule; replay: on a recording, exact for greedy and
            sample.
        budget: Nodes of the largest tree.
        depth: Depth of the deepest tree; 0 = the number of draft heads.
        sizes: Sizes of the greedy trees that are run on their own; all by default.
        bank_out: A bank (.json) to write: the Pareto hull of nodes and throughput, the empty tree first.
        num_prompts: Prompts or recorded texts, the first; 0 = all.
        max_new_tokens: Token cap of a text; that of the recording when it is lower.
        capacity: KV rows; prompt, text and the largest tree must fit.
        recordings: replay: recorded texts, pooled: names, files, or halves of them, as in chat:calibration.
        costs: replay: what prices the steps: a cost table or analytic:... Where a table lacks a tree, all are
            priced by the formula fitted to it.
        prompts: live: prompt set.
        model: live: base model: a known name, a folder or a Hugging Face repository.
        heads: live: draft heads: auto, medusa or a checkpoint.
        acceptance: live: acceptance rule: greedy, sample:temperature=T or typical:temperature=T,epsilon=E,...
        max_joint_nodes: live: nodes of the largest tree that is verified in one pass; with more candidates,
            each step of the search verifies several.
        seed: live: seed of the sampling.
        dtype: live: auto, float32, bfloat16 or float16.
        device: live: auto, cpu or cuda.
    """

    out: Path
    method: Literal["greedy", "optimal"] = "greedy"
    source: Literal["live", "replay"] = "live"
    budget: int = 64
    depth: int = 0
    sizes: tuple[int, ...] = ()
    bank_out: Path | None = None
    num_prompts: int = 0
    max_new_tokens: int = 256
    capacity: int = 2048
    recordings: tuple[str, ...] = ()
    costs: str = "auto"
    prompts: str = "humaneval:calibration"
    model: str = "smollm2"
    heads: str = "auto"
    acceptance: str = "greedy"
    max_joint_nodes: int = 256
    seed: int = 0
    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that search nothing, or that contradict each other."""
        for name in ("budget", "max_new_tokens", "depth", "num_prompts", "seed"):
            value, least = getattr(self, name), int(name in ("budget", "max_new_tokens"))
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.max_joint_nodes < self.budget:
            raise ValueError(
                f"max_joint_nodes={self.max_joint_nodes} must be at least the budget, {self.budget}: "
                "the largest tree but one is verified with a candidate"
            )
        if not all(1 <= size <= self.budget for size in self.sizes):
            raise ValueError(f"sizes must be 1 to the budget, {self.budget}, got {self.sizes}")
        if (self.source == "replay") != bool(self.recordings):
            raise ValueError("name --recordings with --source replay, and only then")
        if self.method == "optimal" and self.source == "live":
            raise ValueError("the method 'optimal' needs the ranks of a recording: use --source replay")
        if self.bank_out is not None and self.bank_out.suffix != ".json":
            raise ValueError(f"bank_out must end in .json, got {self.bank_out}")

    @property
    def trees_path(self) -> Path:
        """The bank of all trees that are run on their own."""
        return self.out / "trees.json"

    @property
    def largest_joint_tree(self) -> int:
        """Nodes of the largest tree that is verified in the search: each node has one candidate below it."""
        return min(self.max_joint_nodes, max(1, 2 * self.budget - 1))

    def count(self, available: int, name: str) -> int:
        """Texts to use of those that there are.

        Raises:
            ValueError: When there are fewer than asked for.
        """
        if self.num_prompts > available:
            raise ValueError(
                f"num_prompts={self.num_prompts}, but {name} has only {available}; 0 uses them all"
            )
        return self.num_prompts or available


def search_trees(config: Trees) -> list[MeasuredTree]:
    """Search, run every tree on its own, print the tables and write the files.

    Returns:
        All trees that were run, the autoregressive one first.

    Raises:
        FileNotFoundError: When model, heads, prompts, recording or costs are not there.
        ValueError: When a setting is unknown, the trees are to be deeper than the heads, a prompt is too
            long, or an interrupted search in ``out`` had other settings.
    """
    source = LiveTexts.open(config) if config.source == "live" else RecordedTexts.open(config)
    depth = config.depth or source.depth
    if depth > source.depth:
        raise ValueError(f"depth={depth} is beyond the {source.depth} draft heads")
    published = [tree for tree in published_trees().values() if tree.depth <= source.depth]
    _check_room(config, source.prompt_tokens, max(map(len, published), default=0))

    journal = Journal(config.out / "search.jsonl", source.settings | {"depth": depth})
    frontier = search(source, depth, config.budget, journal)
    entries: list[tuple[DraftTree, Kind, float | None]] = [(AUTOREGRESSIVE, "autoregressive", None)]
    entries += [
        (found.tree, "greedy", found.accept_length)
        for found in frontier
        if not config.sizes or len(found.tree) in config.sizes
    ]
    if isinstance(source, RecordedTexts) and config.method == "optimal":
        ranks = source.ranks[:, :depth]
        for tree in best_trees_by_depth(ranks, range(1, config.budget + 1)):
            entries.append((tree, "optimal", float(accept_lengths(tree, ranks).mean())))
    entries += [(tree, "published", None) for tree in published]

    bank = TopologyBank([tree for tree, *_ in entries], name="trees")
    bank.save(config.trees_path)
    if isinstance(source, RecordedTexts):
        source = source.price(bank)
    runs = source.run(bank)
    measured = [MeasuredTree(*entry, run) for entry, run in zip(entries, runs, strict=True)]
    _report(config, measured, source.manifest | {"depth": depth})
    return measured


def _check_room(config: Trees, prompt_tokens: Mapping[str, int], largest: int) -> None:
    """A text that hit the end of the cache would count for one tree and not for another."""
    nodes = max(largest, config.budget, config.largest_joint_tree if config.source == "live" else 0)
    prompt_id = max(prompt_tokens, key=lambda key: prompt_tokens[key])
    length, new = prompt_tokens[prompt_id], config.max_new_tokens
    if length + new + 1 + nodes > config.capacity:
        raise ValueError(
            f"prompt {prompt_id!r} of {length} tokens, {new} new ones and a tree of {nodes} nodes do not fit "
            f"into {config.capacity} KV rows; leave it out, lower max_new_tokens or raise the capacity"
        )


def _report(config: Trees, trees: Sequence[MeasuredTree], manifest: dict[str, Any]) -> None:
    hull, biased = throughput_hull(trees), most_biased(trees)
    if config.source == "live":
        what = f"{config.prompts}, {config.acceptance}, timed live"
    else:
        texts, costs = ", ".join(config.recordings), manifest["costs"]["label"]
        what = f"{texts}, {manifest['acceptance']}, priced by {costs}"
        if manifest["approximate"]:
            what += " (approximate: the text depends on the trees)"
    result = {
        "entmtp_star": hull[-1].tree.name,
        "hull": [own.tree.name for own in hull],
        "most_biased": {"name": biased.tree.name, "bias": biased.bias},
        "trees": [own.row() for own in trees],
        "manifest": describe_run() | {"settings": _settings(config), **manifest},
    }
    write_text_atomically(config.out / "frontier.json", json.dumps(result, indent=1) + "\n")
    save_figure(config.out / "frontier.png", frontier_figure(trees, what))
    if config.bank_out is not None:
        TopologyBank([own.tree for own in hull], name=config.bank_out.stem).save(config.bank_out)

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(frontier_table(trees, what))
    if config.method == "optimal":
        console.print(optimality_table(trees))
    console.print(LEGEND, markup=False)
    console.print(
        f"EntMTP*: {hull[-1].tree.name}; largest bias of the search: {biased.bias:+.2%} "
        f"({biased.tree.name}); results: {config.out}",
        soft_wrap=True,
        markup=False,
    )


def _settings(config: Trees) -> dict[str, Any]:
    values = asdict(config)
    return values | {key: str(value) for key, value in values.items() if isinstance(value, Path)}
