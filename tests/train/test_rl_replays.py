import numpy as np
import pytest

from policies.base import SchedulerPolicy
from tests.recordings import random_recording, saved_settings
from train.rl_replays import Replays
from train.rl_table import training_table


@pytest.fixture
def settings(tmp_path):
    return saved_settings(tmp_path, random_recording(np.random.default_rng(3), texts=6))


class Cycle(SchedulerPolicy):
    """Each tree once, then again."""

    def initial_memory(self, n):
        return (np.zeros(n, dtype=int),)

    def act(self, observations, memory):
        return memory[0] % len(self.bank), (memory[0] + 1,)


def test_replays_run_every_text_once(settings):
    recording = settings.pop("recording")
    replays = Replays([recording], settings)
    figures = replays.run(Cycle(replays.env))
    oracle = replays.oracle
    tokens = (oracle.tables.ends - oracle.tables.starts).sum()
    assert figures["regret"] == pytest.approx(tokens / figures["tokens_per_second"] / oracle.seconds.sum())
    assert figures["switch_rate"] == 1
    static = replays.run(replays.best_static)
    assert static["regret"] == pytest.approx(oracle.headroom)
    assert static["switch_rate"] == 0
    assert static[f"action_{oracle.best_static}"] == 1


def test_a_cache_that_would_cut_texts_is_refused(settings):
    with pytest.raises(ValueError, match=r"do not fit into 16 KV rows.*raise the capacity"):
        Replays([settings.pop("recording")], settings | {"capacity": 16})


def test_the_table_compares_with_the_best_static_tree(settings):
    replays = Replays([settings.pop("recording")], settings)
    policies = {"best": replays.best_static, "cycle": Cycle(replays.env)}
    rows = {name: replays.run(policy) for name, policy in policies.items()}
    columns = [list(column.cells) for column in training_table(rows, "title").columns]
    assert [str(cell) for cell in columns[0]] == ["best", "cycle"]
    assert columns[2] == ["1.000", f"{rows['best']['regret'] / rows['cycle']['regret']:.3f}"]
    assert columns[4] == [f"{row['regret']:.3f}" for row in rows.values()]
    assert columns[5] == ["0%", "100%"]
