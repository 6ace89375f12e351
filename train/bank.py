"""``python -m train bank``: the few trees that a scheduler needs, of many that were found."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from entmtp_env.files import refuse_existing, write_text_atomically
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, load_bank
from train.bank_search import BankSearch, exchange, fastest, greedy
from train.bank_table import LEGEND, Choice, choice_table, recordings_table


@dataclass(frozen=True)
class Bank:
    """Keep the trees between which a scheduler can win most.

    A bank for a scheduler is not the same as the best single trees: trees are added one by one such that the
    time of the best possible schedule over the bank (the oracle's) falls most, on recorded texts. The bank of
    the trees that are fastest alone is shown beside it.

    Example: python -m train bank --candidates chat.json math.json --recordings chat math --out bank.json

    Attributes:
        out: Bank to write (.json), smallest tree first; how it was chosen goes to <out>.manifest.json.
        candidates: Banks to choose from, their trees pooled: default or .json files.
        recordings: Recorded texts, pooled: chat, math, ... or .npz files, or halves of them, as in
            chat:calibration.
        costs: Cost table: auto, a name, a .json file or analytic:...; interpolated:<table> also prices trees
            that were not measured.
        size: Trees to keep beside the empty one; fewer are when no other helps.
        swaps: Then exchange kept trees for others until no exchange helps.
        keep: Candidates that the bank has besides, such as hydra-default, so that policies can name them.
        max_new_tokens: Token cap of a text; that of the recordings by default.
        probe: What is drafted before each decision: none, first or chain; the costs must be of the same.
        overwrite: Replace the bank that is there.
    """

    out: Path
    candidates: tuple[str, ...] = ("default",)
    recordings: tuple[str, ...] = ("chat:calibration",)
    costs: str = "auto"
    size: int = 8
    swaps: bool = False
    keep: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    probe: Literal["none", "first", "chain"] = "none"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that choose nothing."""
        if self.out.suffix != ".json":
            raise ValueError(f"out must end in .json, got {self.out}")
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not (self.candidates and self.recordings):
            raise ValueError("candidates and recordings must each name at least one")

    @property
    def manifest_path(self) -> Path:
        """Where it says how the bank was chosen."""
        return self.out.with_name(f"{self.out.name}.manifest.json")


def choose_bank(config: Bank) -> TopologyBank:
    """Choose, print the tables, and write the bank with its manifest.

    Returns:
        The bank.

    Raises:
        FileExistsError: When the bank is there already.
        FileNotFoundError: When a bank, a recording or the costs are not there.
        ValueError: When a file is damaged, a tree is deeper than the recorded heads or has no price,
            recordings do not belong together, or no candidate drafts anything or is called as one to keep.
    """
    refuse_existing(config.out, overwrite=config.overwrite)
    pooled = pool([load_bank(name) for name in config.candidates])
    if pooled.depth == 0:
        raise ValueError(f"no tree of {', '.join(config.candidates)} drafts anything; name other candidates")
    extra = [pooled[pooled.index(name)] for name in config.keep]
    parts = {name: load_recording(name) for name in config.recordings}
    recording, costs = Recording.concatenate(list(parts.values())), load_costs(config.costs)
    # Enough for every text: a bank is chosen for its time, not for what a cache cuts off.
    room = max(text.prompt_tokens for text in recording.texts) + int(recording.lengths.max())
    tables = ReplayTables.build(
        recording, costs, pooled, config.max_new_tokens, room + 1 + pooled.max_nodes, config.probe
    )
    search = BankSearch(tables)
    with progress_bar() as bar:
        kept = first = greedy(search, config.size, bar)
        if config.swaps:
            # Once more in order, each tree behind those that are worth more.
            kept = greedy(search, config.size, bar, among=exchange(search, first, bar))
    tokens = tables.ends - tables.starts
    chosen, singles = (
        Choice.of(search, pooled, tokens, trees) for trees in (kept, fastest(search, config.size))
    )
    gain = float(search.oracle(first).sum() / search.oracle(kept).sum() - 1)

    trees = sorted({*chosen.trees, *extra}, key=lambda tree: (len(tree), tree.depth, tree.name))
    bank = TopologyBank(trees, config.out.stem)
    bank.save(config.out)
    manifest = describe_run() | {
        "settings": asdict(config) | {"out": str(config.out)},
        "bank_fingerprint": bank.fingerprint,
        "texts": {name: len(part.texts) for name, part in parts.items()},
        "recording": tables.manifest,
        "costs": {"name": costs.name, "fingerprint": getattr(costs, "fingerprint", None), **costs.manifest},
        "candidates": [{"name": tree.name, "nodes": tree.nodes} for tree in pooled],
        "chosen": chosen.rows(),
        "fastest_alone": singles.rows(),
        "oracle_of_all_tokens_per_second": float(chosen.rate(chosen.limit)),
        "gain_by_swaps": gain,
    }
    write_text_atomically(config.manifest_path, json.dumps(manifest, indent=2, allow_nan=False) + "\n")

    ends = itertools.accumulate(len(part.texts) for part in parts.values())
    texts = {name: slice(end - len(parts[name].texts), end) for name, end in zip(parts, ends, strict=True)}
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    title = f"{len(pooled)} candidates on {', '.join(parts)}, priced by {costs.name}"
    title += " (approximate replay)" * recording.approximate
    console.print(choice_table(title, chosen, singles), recordings_table(chosen, singles, texts))
    if config.swaps:
        console.print(f"exchanges raise the oracle's throughput by {gain:.3%}")
    console.print(LEGEND, markup=False)
    console.print(f"wrote {config.out} and {config.manifest_path}", soft_wrap=True, markup=False)
    return bank


def pool(banks: Sequence[TopologyBank]) -> TopologyBank:
    """All trees of some banks, each topology once, under the name that it has first.

    Where trees share a name, the hash of the topology follows it.
    """
    unique: dict[str, DraftTree] = {AUTOREGRESSIVE.fingerprint: AUTOREGRESSIVE}
    for bank in banks:
        for tree in bank:
            unique.setdefault(tree.fingerprint, tree)
    names = Counter(tree.name for tree in unique.values())
    return TopologyBank(
        [
            DraftTree(f"{tree.name}-{key[:6]}" if names[tree.name] > 1 else tree.name, tree.nodes)
            for key, tree in unique.items()
        ],
        name="candidates",
    )
