"""A long run takes no more memory than a short one, and its last text is as right as its first."""

import gc
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytestmark = pytest.mark.slow
SEEDS = 4
MEBIBYTE = 1 << 20


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def objects():
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory in use as Linux tells it")
@pytest.mark.parametrize(("env_id", "steps"), [("EntMTP/Live-v0", 20_000), ("EntMTP/Staged-v0", 5_000)])
def test_memory_is_flat_and_texts_are_exact(tiny_files, env_id, steps):
    settings = tiny_files.kwargs | {"acceptance": "sample:temperature=1.5", "max_new_tokens": 100}
    env = gymnasium.make(env_id, **settings).unwrapped
    plain = gymnasium.make("EntMTP/Live-v0", **settings).unwrapped
    random, expected, taken, warm = np.random.default_rng(0), {}, 0, None
    for number in range(steps):
        key = f"t{random.integers(6)}", int(random.integers(SEEDS))
        if key not in expected:
            expected[key] = write(plain, *key, lambda: 0)[0]
        text, count = write(env, *key, lambda: random.integers(env.action_space.n))
        assert text == expected[key], (number, key)
        taken += count
        if warm is None and taken > steps // 5 and len(expected) == 6 * SEEDS:
            warm = objects(), resident()
        if taken >= steps:
            break
    assert taken >= steps
    assert objects() - warm[0] < 100
    assert resident() - warm[1] < 8 * MEBIBYTE


def write(env, prompt_id, seed, choose):
    """The text, and the number of decisions it took."""
    env.reset(seed=seed, options={"prompt_id": prompt_id})
    count = 0
    while True:
        *_, terminated, truncated, info = env.step(choose())
        count += 1
        if terminated or truncated:
            return info["text"], count
