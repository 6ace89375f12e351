"""Does tree decoding give the autoregressive text? Exact in float32; near-ties of bfloat16 are counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from entmtp_env.decoding import SampleRule, TreeDecoder, make_acceptance
from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.engine import Engine, get_engine
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, default_bank


@dataclass(frozen=True)
class Exactness:
    """Compare texts of every tree of the default bank, and of random switching, with autoregressive ones.

    Attributes:
        model: Base model.
        prompts: Prompt sets.
        num_prompts: Prompts of each set.
        max_new_tokens: Token cap.
        acceptance: Lossless acceptance rules.
        dtypes: Element types.
        switching: Texts per prompt with a random tree at every step.
    """

    model: str = "smollm2"
    prompts: tuple[str, ...] = ("humaneval", "chat")
    num_prompts: int = 10
    max_new_tokens: int = 64
    acceptance: tuple[str, ...] = ("greedy", "sample:temperature=0.7")
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    switching: int = 2


@dataclass
class _Tally:
    texts: int = 0
    differ: int = 0
    tokens: int = 0
    margins: list[float] = field(default_factory=list)


def measure_exactness(config: Exactness) -> None:
    """Run the comparison and print a table."""
    bank = default_bank()
    prompts = [p for name in config.prompts for p in load_prompts(name)[: config.num_prompts]]
    table = Table(
        "dtype", "rule", "texts", "different", "tokens compared", "logit margin at the first difference"
    )
    with progress_bar() as bar:
        task = bar.add_task("texts", total=len(prompts) * len(config.dtypes) * len(config.acceptance))
        for dtype in config.dtypes:
            engine = get_engine(config.model, dtype=dtype)
            for rule in config.acceptance:
                tally = _Tally()
                for number, prompt in enumerate(prompts):
                    _compare(engine, bank, rule, engine.encode(prompt), number, config, tally)
                    bar.advance(task)
                table.add_row(
                    dtype,
                    rule,
                    str(tally.texts),
                    str(tally.differ),
                    str(tally.tokens),
                    _margins(tally.margins),
                )
    Console(width=100).print(table)


def _compare(
    engine: Engine,
    bank: TopologyBank,
    rule: str,
    prompt: list[int],
    seed: int,
    config: Exactness,
    tally: _Tally,
) -> None:
    decoder = TreeDecoder(engine.backbone, engine.heads, eos_token_ids=engine.eos_token_ids)
    rng = random.Random(seed)

    def decode(choose: Callable[[], DraftTree], roots: list[torch.Tensor] | None = None) -> list[int]:
        decoder.start(prompt, make_acceptance(rule), max_new_tokens=config.max_new_tokens, seed=seed)
        while not decoder.finish_reason:
            if roots is not None:
                roots.append(decoder.root_logits.float())
            decoder.step(choose())
        return decoder.tokens

    # Autoregressive steps are one token each, so their roots are all tokens of the text.
    logits: list[torch.Tensor] = []
    expected = decode(lambda: AUTOREGRESSIVE, logits)
    fixed = [lambda tree=tree: tree for tree in bank if len(tree)]
    for choose in [*fixed, *[lambda: rng.choice(bank.trees)] * config.switching]:
        tokens = decode(choose)
        tally.texts += 1
        pairs = list(zip(expected, tokens, strict=False))
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        tally.tokens += first
        if tokens != expected:
            tally.differ += 1
            if first < len(pairs):
                scores = _scores(logits[first], rule, seed, len(prompt) + first)
                tally.margins.append(float(scores[pairs[first][0]] - scores[pairs[first][1]]))


def _scores(logits: torch.Tensor, spec: str, seed: int, position: int) -> torch.Tensor:
    """What the rule maximises, in units of a logit."""
    rule = make_acceptance(spec)
    if not isinstance(rule, SampleRule):
        return logits
    return logits + rule.temperature * torch.from_numpy(gumbel_noise(seed, position, len(logits)))


def _margins(margins: list[float]) -> str:
    if not margins:
        return "-"
    return f"median {np.median(np.abs(margins)):.3f}, largest {np.max(np.abs(margins)):.3f}"
