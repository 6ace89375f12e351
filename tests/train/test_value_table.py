import numpy as np
import pytest
from rich.console import Console

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.oracle import Oracle
from policies.static import Static
from tests.recordings import random_recording, saved_settings
from train.value_table import Judge, value_table


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    envs = {}
    for name in ("one", "[two]"):
        recording = random_recording(np.random.default_rng(len(name)), texts=4, longest=30, cap=30)
        settings = saved_settings(tmp_path_factory.mktemp("judge"), recording)
        envs[name] = ReplayVectorEnv(4, **settings)
    oracles = [solve(own.tables) for own in envs.values()]
    bounds = [(own.static_seconds[1].sum(), own.seconds.sum()) for own in oracles]
    judge = Judge(envs, "static:chain-1", bounds)
    judge.add("plan", Oracle)
    judge.add("chain", lambda env: Static(env, "chain-1"))
    judge.add("plain", lambda env: Static(env, "autoregressive"))
    return judge, oracles


def test_rows_are_ratios_of_sums(judge):
    judge, oracles = judge
    least = sum(oracle.seconds.sum() for oracle in oracles)
    static, plain = (sum(oracle.static_seconds[k].sum() for oracle in oracles) for k in (1, 0))
    tokens = sum(oracle.tables.recording.lengths.sum() for oracle in oracles)
    rows = {row.pop("policy"): row for row in judge.record()}
    assert list(rows)[-1] in ("oracle", "plan")
    for name, same in (("plan", "oracle"), ("chain", "static:chain-1")):
        assert rows[name]["recordings"] == pytest.approx(rows[same]["recordings"])
        assert rows[name]["tokens_per_second"] == pytest.approx(rows[same]["tokens_per_second"])
    assert (rows["plan"]["regret"], rows["plan"]["gap"]) == pytest.approx((1, 1))
    assert rows["plan"]["versus_static"] == pytest.approx(static / least)
    assert (rows["chain"]["versus_static"], rows["chain"]["gap"]) == pytest.approx((1, 0))
    assert rows["plain"]["tokens_per_second"] == pytest.approx(tokens / plain)
    assert rows["plain"]["regret"] == pytest.approx(plain / least)
    assert rows["plain"]["gap"] == pytest.approx((static - plain) / (static - least))
    assert rows["plain"]["recordings"]["one"] == pytest.approx(
        oracles[0].static_seconds[1].sum() / oracles[0].static_seconds[0].sum()
    )


def test_the_table_shows_them(judge):
    console = Console(width=110)
    with console.capture() as capture:
        console.print(value_table(judge[0], "costs"))
    shown = capture.get()
    assert all(text in shown for text in ("[two]", "static:chain-1", "oracle", "100%", "priced by costs"))
