"""The parts of a decode step, timed in their places: drafting, verification, gather, prefix layer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.interleaved import Finding, Samples, Turn, median_of
from benchmarks.products import KINDS, time_products
from benchmarks.step_times import copy_bandwidth, step_bytes
from entmtp_env.decoding import TreeDecoder
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree

PARTS = ("draft", "verify", "gather", "prefix")
"""Heads; base model; KV rows moved together; prefix layer over the accepted rows."""

_COPY_BYTES = 256 << 20


def accepted_rows(tree: DraftTree) -> list[int]:
    """Rows of the last of the deepest paths, root first: as many as a step can keep, and seldom in a row."""
    last = tree.nodes[-1] if len(tree) else ()
    return [tree.rows[last[:depth]] for depth in range(tree.depth + 1)]


@torch.inference_mode()
def dissect(decoder: TreeDecoder, tree: DraftTree) -> npt.NDArray[np.float64]:
    """Seconds of the parts of a step, ``(4,)``, as if all of :func:`accepted_rows` were accepted.

    Nothing is committed, so that it can be repeated; between the parts lies what lies there in a step.
    """
    cache, prefix_cache, prefix = decoder._cache, decoder._prefix_cache, decoder.heads.prefix
    rows, length = accepted_rows(tree), decoder.length
    clock = [time.perf_counter()]
    draft = decoder.draft(tree)
    clock.append(time.perf_counter())
    _, hidden, _ = decoder.verify(draft)
    clock.append(time.perf_counter())
    cache.keep(rows)
    clock.append(time.perf_counter())
    if prefix is not None:
        prefix(hidden[rows][None], prefix_cache)
    clock.append(time.perf_counter())
    cache.length = length
    if prefix_cache is not None:
        prefix_cache.length = length
    return np.diff(clock)


def step_turns(decoder: TreeDecoder, trees: Sequence[DraftTree], context: int, repeats: int) -> list[Turn]:
    """Whole autoregressive steps, their matrix products, the floor of memory, and the parts of each tree.

    Args:
        decoder: What decodes; it must not know an EOS token.
        trees: Trees with different names, the empty one among them.
        context: Committed tokens.
        repeats: Of what is short, medians of so many; one that is not timed comes before.
    """
    backbone = decoder.backbone

    def autoregressive() -> dict[str, float]:
        begin_text(decoder, context)
        return {"autoregressive": float(median_of(lambda: decoder.step(AUTOREGRESSIVE).seconds, repeats))}

    def products() -> dict[str, float]:
        seconds = median_of(lambda: time_products(backbone), repeats)
        return {f"product {kind}": own for kind, own in zip(KINDS, seconds.tolist(), strict=True)}

    def floor() -> dict[str, float]:
        bandwidth = copy_bandwidth(backbone.device, _COPY_BYTES)
        return {"floor": step_bytes(backbone, None, context) / bandwidth}

    def parts(tree: DraftTree) -> Turn:
        def run() -> dict[str, float]:
            begin_text(decoder, context)
            seconds = median_of(lambda: dissect(decoder, tree), repeats)
            return {f"{part} {tree.name}": own for part, own in zip(PARTS, seconds.tolist(), strict=True)}

        return run

    return [autoregressive, products, floor, *map(parts, trees)]


def switch_turn(decoder: TreeDecoder, pair: tuple[DraftTree, DraftTree], context: int, repeats: int) -> Turn:
    """Two trees, each twice in a row, again and again at one and the same place of a text.

    ``switch`` is the seconds by which a step is longer behind one of the other tree than behind one of its
    own; ``look-up`` those of finding a tree's tables, which every step does.
    """
    behind_other_and_own = [tree for tree in pair for _ in range(2)]

    def run() -> dict[str, float]:
        begin_text(decoder, context)
        seconds = median_of(lambda: [dissect(decoder, t).sum() for t in behind_other_and_own], repeats)
        begin = time.perf_counter()
        for _ in range(repeats):
            for tree in pair:
                decoder._layout(tree), decoder._plans[tree, None]
        spent = time.perf_counter() - begin
        return {"switch": float((seconds[::2] - seconds[1::2]).mean()), "look-up": spent / (2 * repeats)}

    return run


def step_findings(samples: Samples, trees: Sequence[DraftTree]) -> list[Finding]:
    """Ratios of what :func:`step_turns` measured to an autoregressive step, round by round."""
    step = samples["autoregressive"]
    products = {kind: samples[f"product {kind}"] for kind in KINDS}
    shares = {f"share of {kind} products": own / step for kind, own in products.items()}
    largest = max(trees, key=len)
    shares["share of all else"] = 1 - np.sum(list(shares.values()), axis=0)
    product_sum = np.sum(list(products.values()), axis=0)
    drafting = {part: samples[f"{part} {largest.name}"] / step for part in PARTS}
    of_largest = f"{len(largest)} nodes ({largest.name})"
    return [
        Finding.of("steps", "autoregressive step ÷ its matrix products", step / product_sum, goal="≤ 1.3"),
        Finding.of("steps", "autoregressive step ÷ reading what it must", step / samples["floor"]),
        *(Finding.of("steps", name, own) for name, own in shares.items()),
        *(
            Finding.of(
                "steps",
                f"verify {len(tree)} nodes ({tree.name})",
                samples[f"verify {tree.name}"] / step,
                goal="≤ 1.5" if len(tree) == 32 else "",
            )
            for tree in sorted(trees, key=len)
        ),
        Finding.of("steps", f"draft {of_largest}: heads", drafting["draft"]),
        Finding.of("steps", f"draft {of_largest}: prefix layer", drafting["prefix"]),
        Finding.of("steps", f"draft {of_largest}", drafting["draft"] + drafting["prefix"], goal="≤ 0.25"),
        Finding.of(
            "steps", f"commit: KV gather of {largest.depth + 1} rows", drafting["gather"], goal="≤ 0.02"
        ),
        Finding.of("steps", "autoregressive step", 1e3 * step, "ms"),
    ]


def switch_findings(samples: Samples) -> list[Finding]:
    """Microseconds of what :func:`switch_turn` measured."""
    return [
        Finding.of(
            "switch", "step behind another tree − behind its own", 1e6 * samples["switch"], "µs", "≤ 5"
        ),
        Finding.of("switch", "a tree's tables, found", 1e6 * samples["look-up"], "µs"),
    ]


def begin_text(decoder: TreeDecoder, context: int) -> None:
    """Begin behind a prompt of ``context`` random tokens, always the same ones."""
    vocab_size = decoder.backbone.config.vocab_size
    prompt = np.random.default_rng(context).integers(vocab_size, size=context).tolist()
    decoder.start(prompt, max_new_tokens=decoder.capacity)
