"""How long the matrix products of a step take by rows and by the form that the weights are kept in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from benchmarks.interleaved import take_turns
from entmtp_env.decoding.half_linear import HalfLinear, can_multiply_half
from entmtp_env.decoding.linear import PackedLinear
from entmtp_env.huge_pages import on_huge_pages
from entmtp_env.progress import progress_bar

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Linear:
    """Time the products of a model's layers and LM head alone, on this CPU, without needing its weights.

    Every form has weights of its own, more than caches hold; forms and numbers of rows take turns.

    Attributes:
        rows: Numbers of rows.
        layers: Layers of the model; by default the shapes are SmolLM2-135M's.
        hidden_size: Width of the hidden states.
        qkv_size: Width of queries, keys and values together.
        intermediate_size: Width of the MLP.
        vocab_size: Tokens.
        rounds: Rounds of turns.
    """

    rows: tuple[int, ...] = (1, 2, 4, 5, 6, 9, 16, 32, 64, 128, 256)
    layers: int = 30
    hidden_size: int = 576
    qkv_size: int = 960
    intermediate_size: int = 1536
    vocab_size: int = 49152
    rounds: int = 9

    def __post_init__(self) -> None:
        """Refuse sizes that measure nothing."""
        if not self.rows or min(*self.rows, *self.shapes[0], self.layers, self.vocab_size, self.rounds) < 1:
            raise ValueError("rows must name at least one number, and all numbers must be at least 1")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Outputs and inputs of each product of a step, in order."""
        hidden, inner = self.hidden_size, self.intermediate_size
        layer = [(self.qkv_size, hidden), (hidden, hidden), (2 * inner, hidden), (hidden, inner)]
        return [*layer * self.layers, (self.vocab_size, hidden)]


@torch.inference_mode()
def measure_linear(config: Linear) -> dict[str, dict[int, float]]:
    """Measure, and print a table.

    Args:
        config: What to measure.

    Returns:
        Median seconds by form and rows.
    """
    forms = _forms(config.shapes)
    turns = [
        partial(_time, f"{form} {rows}", maps, config.shapes, rows)
        for form, maps in forms.items()
        for rows in config.rows
    ]
    with progress_bar() as bar:
        task = bar.add_task("products", total=len(turns) * (config.rounds + 1))
        samples = take_turns(turns, config.rounds, lambda: bar.advance(task))
    medians = {
        form: {rows: float(np.median(samples[f"{form} {rows}"])) for rows in config.rows} for form in forms
    }
    table = Table("rows", *(f"{form}, ms" for form in forms))
    for rows in config.rows:
        table.add_row(str(rows), *(f"{1e3 * medians[form][rows]:.1f}" for form in forms))
    console = Console(width=100)
    console.print(table)
    console.print(f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    return medians


def _forms(shapes: Sequence[tuple[int, int]]) -> dict[str, list[Map]]:
    """The maps of a step for each form that this machine has."""
    weights = [torch.randn(shape) for shape in shapes]
    forms: dict[str, list[Map]] = {"float32, plain": [partial(F.linear, weight=w) for w in weights]}
    packed = [PackedLinear(w) for w in weights]
    if packed[0].packed:
        forms["float32, packed"] = [own.forward for own in packed]
    if can_multiply_half():
        forms["float16 and float32"] = [HalfLinear(w).forward for w in weights]
    halves = [PackedLinear(w.bfloat16()) for w in weights]
    if halves[0].packed:
        forms["bfloat16, packed"] = [_in_bfloat16(own) for own in halves]
    # As decoding has them.
    with on_huge_pages(torch.device("cpu")):
        if halves[0].packed:
            forms["bfloat16, huge pages"] = [_in_bfloat16(PackedLinear(w.bfloat16())) for w in weights]
        elif can_multiply_half():
            forms["float16, huge pages"] = [HalfLinear(w).forward for w in weights]
    return forms


def _in_bfloat16(linear: PackedLinear) -> Map:
    return lambda x: linear.forward(x.bfloat16())


def _time(name: str, maps: Sequence[Map], shapes: Sequence[tuple[int, int]], rows: int) -> dict[str, float]:
    inputs = {width: torch.randn(rows, width) for _, width in shapes}
    begin = time.perf_counter()
    for linear, (_, width) in zip(maps, shapes, strict=True):
        linear(inputs[width])
    return {name: time.perf_counter() - begin}
