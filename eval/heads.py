"""``python -m eval heads``: what draft heads are worth, on text of the base model and without decoding."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from entmtp_env.decoding.ranks import TokenRanks, rank_texts
from entmtp_env.engine import Engine, get_engine
from entmtp_env.figures import save_figure
from entmtp_env.files import write_text_atomically
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from eval.calibration import Calibration, calibration
from eval.calibration_plot import calibration_figure
from eval.draft_cost import DraftCost, draft_cost
from eval.head_scores import SetScores, best_trees_of, pool, score_sets
from eval.head_table import LEGEND, cost_table, scores_table
from eval.texts import Text, TextSettings, written_texts


@dataclass(frozen=True)
class Heads:
    """Evaluate draft heads on text that the base model writes, several on the same text.

    Prints, per prompt set and pooled: how often the true token is among the first 1, 4 and 10 candidates of
    each depth given that it was so at every lower depth, tokens per step (tau) of chains and trees, and the
    cost of drafting. Writes heads.json and calibration.png; those of an earlier run are replaced.

    Example: python -m eval heads --heads auto runs/new.safetensors --prompts humaneval mine.jsonl

    Attributes:
        heads: Draft heads: auto, medusa or checkpoints.
        prompts: Prompt sets, each with its own results: chat, math, stories, humaneval or a .jsonl file, or
            half of one, as in chat:evaluation.
        num_prompts: Prompts of each set, the first after a seeded shuffle; 0 = all.
        model: Base model: a known name, a folder or a Hugging Face repository.
        acceptance: How the text is chosen: greedy or sample:temperature=T.
        max_new_tokens: Cap on the tokens of a text.
        timing_steps: Decode steps between which drafting is timed; 0 = no timing.
        cache: Folder where texts are kept, for the next heads.
        out: Result folder.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu or cuda.
        seed: Seed of prompt choice, sampling and bootstrap.
        bootstrap_samples: Resamples behind an interval.
    """

    heads: tuple[str, ...] = ("auto",)
    prompts: tuple[str, ...] = ("humaneval", "chat:evaluation", "math:evaluation", "stories:evaluation")
    num_prompts: int = 0
    model: str = "smollm2"
    acceptance: str = "greedy"
    max_new_tokens: int = 256
    timing_steps: int = 50
    cache: Path = Path("runs/texts")
    out: Path = Path("runs/heads-eval")
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    bootstrap_samples: int = 10_000


@dataclass(frozen=True)
class HeadsResult:
    """One set of heads.

    Attributes:
        manifest: Names and fingerprints of model and heads.
        sets: Scores by prompt set, and ``"pooled"``.
        best_trees: Nodes of the best trees on all texts, by name.
        calibration: Over all texts.
        cost: Cost of drafting, unless it was not timed.
    """

    manifest: dict[str, str]
    sets: dict[str, SetScores]
    best_trees: dict[str, tuple[tuple[int, ...], ...]]
    calibration: Calibration
    cost: DraftCost | None


def evaluate_heads(config: Heads) -> dict[str, HeadsResult]:
    """Evaluate heads, print the tables and write the files.

    Returns:
        Results by heads, as named in ``config``.

    Raises:
        FileNotFoundError: When a model, checkpoint or prompt file is missing.
        ValueError: When a setting is out of range or unknown, or a prompt does not fit into the model.
    """
    for name, least in (
        ("num_prompts", 0),
        ("max_new_tokens", 1),
        ("timing_steps", 0),
        ("seed", 0),
        ("bootstrap_samples", 1),
    ):
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)} must be at least {least}")
    if not config.heads or not config.prompts:
        raise ValueError("name at least one of heads and one of prompts, such as auto and chat:evaluation")
    settings = TextSettings(config.num_prompts, config.acceptance, config.max_new_tokens, config.seed)
    engines = {
        heads: get_engine(config.model, heads, config.dtype, config.device)
        for heads in dict.fromkeys(config.heads)
    }
    first = next(iter(engines.values()))
    texts = {
        prompts: written_texts(first, prompts, settings, config.cache)
        for prompts in dict.fromkeys(config.prompts)
    }
    ranks = _rank(engines, texts)
    prompt = next(iter(texts.values()))[0].prompt
    results = {}
    for heads, engine in engines.items():
        pooled = pool(ranks[heads])
        results[heads] = HeadsResult(
            manifest=engine.manifest,
            sets=score_sets(ranks[heads], config.bootstrap_samples, config.seed),
            best_trees={tree.name: tree.nodes for tree in best_trees_of(pooled)},
            calibration=calibration(pooled),
            cost=draft_cost(engine, prompt, config.timing_steps) if config.timing_steps else None,
        )
    document = {
        "manifest": describe_run() | {"settings": _plain(config)},
        "heads": {heads: dataclasses.asdict(result) for heads, result in results.items()},
    }
    write_text_atomically(config.out / "heads.json", json.dumps(document, indent=2, allow_nan=False) + "\n")
    save_figure(
        config.out / "calibration.png",
        calibration_figure({heads: result.calibration for heads, result in results.items()}),
    )
    _print(results, config.out)
    return results


def _rank(
    engines: Mapping[str, Engine], texts: Mapping[str, Sequence[Text]]
) -> dict[str, dict[str, list[TokenRanks]]]:
    """Ranks by heads and prompt set, texts in their order."""
    place = [(prompts, i) for prompts, own in texts.items() for i in range(len(own))]
    pairs = [(text.prompt, text.reply) for own in texts.values() for text in own]
    backbone = next(iter(engines.values())).backbone
    ranked: dict[int, list[TokenRanks]] = {}
    with progress_bar() as bar:
        task = bar.add_task("ranking tokens", total=sum(len(reply) for _, reply in pairs))
        for index, own in rank_texts(backbone, [engine.heads for engine in engines.values()], pairs):
            ranked[index] = own
            bar.advance(task, len(pairs[index][1]))
    result: dict[str, dict[str, list[TokenRanks]]] = {}
    for h, heads in enumerate(engines):
        result[heads] = {prompts: [] for prompts in texts}
        for index, (prompts, _) in enumerate(place):
            result[heads][prompts].append(ranked[index][h])
    return result


def _plain(config: Heads) -> dict[str, Any]:
    return dataclasses.asdict(config) | {"cache": str(config.cache), "out": str(config.out)}


def _print(results: Mapping[str, HeadsResult], out: Path) -> None:
    console = Console(width=None if sys.stdout.isatty() else 100)
    for prompts in next(iter(results.values())).sets:
        console.print(scores_table(prompts, {heads: r.sets[prompts] for heads, r in results.items()}))
    costs = {heads: result.cost for heads, result in results.items() if result.cost is not None}
    if costs:
        console.print(cost_table(costs))
    console.print(LEGEND, highlight=False, markup=False)
    console.print(f"results: {out}", soft_wrap=True, highlight=False, markup=False)
