"""How costs grow with context, nodes, texts at a time and environments."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from benchmarks.interleaved import Finding, Turn, take_turns
from benchmarks.replay import random_recording
from benchmarks.step_times import ROUNDS, time_steps
from entmtp_env.decoding import TreeDecoder
from entmtp_env.decoding.batch import generate_batch
from entmtp_env.engine import Engine
from entmtp_env.progress import progress_bar
from entmtp_env.prompts import Prompt
from entmtp_env.replay.recorder import Recorder, Text
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.trees.presets import likely_tree

SHARES = (0.52, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)
"""Shares of true tokens by rank, which shape trees of any size."""

_COSTS = "analytic:base=0.02,node=0.0005,depth=0.001"
_TEXTS, _TOKENS = 256, 64
_REPLAYED = 100_000


@dataclass(frozen=True)
class Sizes:
    """What to measure at; each is sorted, without doubles.

    Attributes:
        contexts: Committed tokens.
        nodes: Nodes of trees.
        batches: Texts written and recorded at a time.
        num_envs: Replayed episodes in lock-step.
    """

    contexts: tuple[int, ...]
    nodes: tuple[int, ...]
    batches: tuple[int, ...]
    num_envs: tuple[int, ...]

    def __post_init__(self) -> None:
        """Sort, and refuse what is no size.

        Raises:
            ValueError: When one is empty or holds a number that is too small.
        """
        for field in dataclasses.fields(self):
            sizes, least = sorted({*getattr(self, field.name)}), 0 if field.name == "nodes" else 1
            if not sizes or sizes[0] < least:
                raise ValueError(f"{field.name} must be numbers of at least {least}, got {tuple(sizes)}")
            object.__setattr__(self, field.name, tuple(sizes))


@dataclass(frozen=True)
class Scaling:
    """Medians over rounds in which all sizes took turns.

    Attributes:
        sizes: What was measured at: C contexts, K nodes, B batches, N numbers of environments.
        seconds: Of a whole decode step, ``(K, C)``.
        prefill_seconds: Of a prompt as long as the context, ``(C,)``.
        recorded: Tokens per second, written and recorded, ``(B,)``.
        replayed: Steps per second of all environments, ``(N,)``.
    """

    sizes: Sizes
    seconds: npt.NDArray[np.float64]
    prefill_seconds: npt.NDArray[np.float64]
    recorded: npt.NDArray[np.float64]
    replayed: npt.NDArray[np.float64]

    def findings(self) -> list[Finding]:
        """How steep each cost grows: the largest d ln seconds ÷ d ln size between neighbouring sizes.

        Above 1 is super-linear. Of decode steps the median over the other size, the least and the greatest.
        """
        s = self.sizes
        found = {
            "context": growth(s.contexts, self.seconds.T),
            "rows (nodes and root)": growth([n + 1 for n in s.nodes], self.seconds),
            "prompt (prefill)": growth(s.contexts, self.prefill_seconds[:, None]),
            "texts at a time (recording)": growth(s.batches, (s.batches / self.recorded)[:, None]),
            "environments (replay)": growth(s.num_envs, (s.num_envs / self.replayed)[:, None]),
        }
        return [
            Finding("scaling", f"steepest growth with {name}", *own, unit="", goal="≤ 1")
            for name, own in found.items()
        ]

    def document(self) -> dict[str, Any]:
        """Plain JSON values."""
        arrays = {key: value for key, value in vars(self).items() if key != "sizes"}
        return dataclasses.asdict(self.sizes) | {key: value.tolist() for key, value in arrays.items()}


def growth(sizes: Sequence[int], seconds: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """The largest exponent between neighbouring sizes.

    Args:
        sizes: S sizes, rising and positive.
        seconds: Costs, ``(S, columns)``.

    Returns:
        Over the columns: median, least and greatest; NaN of a single size.
    """
    if len(sizes) < 2:
        return (np.nan,) * 3
    steepest = (np.diff(np.log(seconds), axis=0) / np.diff(np.log(sizes))[:, None]).max(0)
    return float(np.median(steepest)), float(steepest.min()), float(steepest.max())


def measure_scaling(
    engine: Engine, prompts: Sequence[Prompt], sizes: Sizes, max_new_tokens: int, repeats: int
) -> Scaling:
    """Measure all of it.

    Args:
        engine: The model.
        prompts: Whose texts are written and recorded; they come again when a batch has more.
        sizes: What to measure at.
        max_new_tokens: Token cap of a recorded text.
        repeats: Timed steps of each tree at each context, in each of five rounds.

    Raises:
        ValueError: When a context does not fit into the model beside the largest tree.
    """
    turns = (ROUNDS + 1) * (len(sizes.batches) + len(sizes.num_envs))
    with progress_bar() as bar:
        visits = ROUNDS * len(sizes.contexts) * len(sizes.nodes)
        task = bar.add_task("scaling", total=visits + turns)

        def advance() -> None:
            bar.advance(task)

        seconds, prefill = _steps(engine, sizes, repeats, advance)
        recording = [_recording_turn(engine, prompts, batch, max_new_tokens) for batch in sizes.batches]
        recorded = take_turns(recording, ROUNDS, advance)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "random.npz"
            random_recording(_TEXTS, _TOKENS).save(path)
            replays = [_replay_turn(count, str(path)) for count in sizes.num_envs]
            replayed = take_turns(replays, ROUNDS, advance)
    return Scaling(
        sizes=sizes,
        seconds=seconds,
        prefill_seconds=prefill,
        recorded=np.array([np.median(recorded[str(batch)]) for batch in sizes.batches]),
        replayed=np.array([np.median(replayed[str(count)]) for count in sizes.num_envs]),
    )


def _steps(
    engine: Engine, sizes: Sizes, repeats: int, advance: Callable[[], None]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    depth, largest, longest = engine.heads.config.depth, sizes.nodes[-1], sizes.contexts[-1]
    trees = [likely_tree(size, depth, SHARES, f"{size} nodes") for size in sizes.nodes]
    capacity = longest + (repeats + 1) * (depth + 1) + 1 + largest
    positions = engine.backbone.config.max_positions
    if capacity > positions:
        raise ValueError(
            f"{longest} tokens, the steps that are timed and {largest} nodes take {capacity} KV rows, and "
            f"this model has {positions} positions; change --contexts, --nodes or --repeats"
        )
    decoder = TreeDecoder(engine.backbone, engine.heads, capacity=capacity, max_nodes=largest)
    steps, prefill = time_steps(decoder, trees, sizes.contexts, repeats, advance)
    return np.median(steps[..., 0], axis=0), np.median(prefill, axis=0)


def _recording_turn(engine: Engine, prompts: Sequence[Prompt], batch: int, max_new_tokens: int) -> Turn:
    recorder = Recorder(engine, max_new_tokens=max_new_tokens)
    tokens = [tuple(engine.encode(prompt)) for prompt in prompts]
    texts = [Text(f"text-{i}", tokens[i % len(tokens)], seed=i) for i in range(batch)]

    def run() -> dict[str, float]:
        hidden: dict[int, Tensor] = {}
        begin = time.perf_counter()
        replies = generate_batch(
            engine.backbone,
            [recorder.request(text) for text in texts],
            max_new_tokens=max_new_tokens,
            eos_token_ids=engine.eos_token_ids,
            slots=batch,
            hidden=hidden,
        )
        written = [
            dataclasses.replace(texts[i], reply=tuple(reply), hidden=hidden.pop(i)) for i, reply in replies
        ]
        recorder.record(written)
        return {str(batch): sum(len(text.reply) for text in written) / (time.perf_counter() - begin)}

    return run


def _replay_turn(num_envs: int, path: str) -> Turn:
    env = ReplayVectorEnv(num_envs, recording=path, costs=_COSTS)
    # Texts go on from turn to turn, so that sooner or later they end at different steps.
    env.reset(seed=0)
    steps = min(1000, max(32, _REPLAYED // num_envs))
    actions = np.random.default_rng(0).integers(len(env.bank), size=(steps, num_envs))
    ended = 0

    def run() -> dict[str, float]:
        nonlocal ended
        idle = 0
        begin = time.perf_counter()
        for batch in actions:
            # The step behind an ended text begins the next one and decodes nothing.
            idle += ended
            _, _, terminated, truncated, _ = env.step(batch)
            ended = int(np.count_nonzero(terminated | truncated))
        return {str(num_envs): (actions.size - idle) / (time.perf_counter() - begin)}

    return run
