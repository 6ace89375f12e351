"""How fast replays run and how much memory they take, on a random recording."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_machine
from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.recording import RecordedText, Recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.trees import DraftTree, default_bank

_COSTS = "analytic:base=0.02,node=0.0005,depth=0.001"


@dataclass(frozen=True)
class Replay:
    """Time steps of the replay environments and the oracle, taking turns; medians are printed.

    Attributes:
        texts: Texts of the recording.
        tokens: Tokens of each.
        num_envs: Episodes in lock-step.
        steps: Steps of a single environment per turn.
        vector_steps: Steps of the vector environments per turn.
        repeats: Turns.
    """

    texts: int = 1024
    tokens: int = 256
    num_envs: int = 4096
    steps: int = 20_000
    vector_steps: int = 200
    repeats: int = 7


def measure_replay(config: Replay) -> None:
    """Run the measurements and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.npz"
        random_recording(config.texts, config.tokens).save(path)
        # In a process of its own, whose memory holds nothing else.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            resident, peak = pool.apply(_memory, (str(path),))
        turns = _turns(config, str(path))
        seconds: dict[str, list[float]] = {name: [] for name, *_ in turns}
        with progress_bar() as bar:
            task = bar.add_task("turns", total=(config.repeats + 1) * len(turns))
            for turn in range(config.repeats + 1):
                for name, _, run in turns:
                    spent = run()
                    if turn:  # the first warms up
                        seconds[name].append(spent)
                    bar.advance(task)

    machine = describe_machine()
    table = Table(title=f"{machine['processor']}, {machine['cores']} cores", title_justify="left")
    for column in ("", "median", "quartiles", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for name, goal, _ in turns:
        low, median, high = np.quantile(seconds[name], (0.25, 0.5, 0.75))
        if name.startswith("solve"):
            table.add_row(name, f"{median:.2f} s", f"{low:.2f} to {high:.2f}", goal)
        else:
            table.add_row(name, f"{1 / median:,.0f} steps/s", f"{1 / high:,.0f} to {1 / low:,.0f}", goal)
    size = f"{config.texts} texts of {config.tokens} tokens"
    table.add_row(f"memory, {size}", f"{resident:.0f} MB", f"peak {peak:.0f} MB", "300 MB")
    Console(width=110).print(table)


def random_recording(texts: int, tokens: int) -> Recording:
    """Texts of equal length and random ranks, as deep as the default bank."""
    rng, depth, rows = np.random.default_rng(0), default_bank().depth, tokens + 1
    ranks = rng.choice([0, 0, 0, 0, 1, 2, 5, NOT_DRAFTABLE], size=(texts, rows, depth))
    ranks[:, np.arange(rows)[:, None] + np.arange(1, depth + 1) > tokens] = NO_TOKEN
    names = ("model_fingerprint", "heads_fingerprint", "acceptance", "dtype")

    def floats(*shape: int) -> np.ndarray:
        return rng.random((texts * rows, *shape), dtype=np.float32)

    return Recording(
        manifest=dict.fromkeys(names, "random") | {"max_new_tokens": tokens},
        texts=tuple(RecordedText(f"r{i}", 64, i, "length", "x" * 4 * tokens) for i in range(texts)),
        offsets=np.arange(texts + 1) * rows,
        tokens=rng.integers(50_000, size=texts * rows, dtype=np.int32),
        ranks=ranks.reshape(-1, depth).astype(np.int32),
        base_top1=floats(),
        base_entropy=floats(),
        head_top1=floats(depth),
        head_entropy=floats(depth),
        root_shape=rng.random((texts * rows, 5)) < 0.3,
        candidates=DraftTree("none"),
        path_values=np.zeros((texts * rows, 0), dtype=np.float16),
    )


def _turns(config: Replay, path: str) -> list[tuple[str, str, Callable[[], float]]]:
    """Name, goal, and what takes a turn and returns its seconds: per step, or in all for the oracle."""
    from entmtp_env.replay.sb3 import ReplaySB3VecEnv  # an optional extra, which the others do without

    settings = {"recording": path, "costs": _COSTS}
    rng, trees = np.random.default_rng(0), len(default_bank())
    actions = rng.integers(trees, size=config.steps).tolist()
    batches = rng.integers(trees, size=(config.vector_steps, config.num_envs))

    def single(env: gymnasium.Env) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            env.reset(seed=0)
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            return (time.perf_counter() - begin) / len(actions)

        return run

    vector = ReplayVectorEnv(config.num_envs, **settings)
    sb3 = ReplaySB3VecEnv(config.num_envs, **settings)

    def lock_step() -> float:
        vector.reset(seed=0)
        # The step behind an ended text begins the next one and decodes nothing.
        idle, ended = 0, 0
        begin = time.perf_counter()
        for batch in batches:
            idle += ended
            _, _, terminated, truncated, _ = vector.step(batch)
            ended = np.count_nonzero(terminated | truncated)
        return (time.perf_counter() - begin) / (batches.size - idle)

    def stable_baselines() -> float:
        sb3.seed(0)
        sb3.reset()
        begin = time.perf_counter()
        for batch in batches:
            sb3.step(batch)
        return (time.perf_counter() - begin) / batches.size

    def oracle() -> float:
        begin = time.perf_counter()
        solve(vector.tables)
        return time.perf_counter() - begin

    made = gymnasium.make("EntMTP/Replay-v0", disable_env_checker=True, **settings)
    at = f"{config.num_envs} episodes"
    return [
        ("ReplayEnv, by gymnasium.make", "100,000", single(made)),
        ("ReplayEnv, unwrapped", "100,000", single(made.unwrapped)),
        (f"ReplayVectorEnv, {at}", "3,000,000", lock_step),
        (f"ReplaySB3VecEnv, {at}", "", stable_baselines),
        (f"solve, {config.texts} texts of {config.tokens} tokens", "", oracle),
    ]


def _memory(path: str) -> tuple[float, float]:
    """MB of resident memory that an environment adds, after an episode and at its peak (Linux only)."""

    def resident() -> dict[str, float]:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return {key: int(fields[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM")}

    before = resident()
    env = ReplayEnv(recording=path, costs=_COSTS)
    env.reset(seed=0)
    ended = False
    while not ended:
        _, _, terminated, truncated, _ = env.step(0)
        ended = terminated or truncated
    after = resident()
    return after["VmRSS"] - before["VmRSS"], after["VmHWM"] - before["VmRSS"]
