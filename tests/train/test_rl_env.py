import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from entmtp_env.replay.sb3 import ReplaySB3VecEnv
from tests.recordings import BANK, random_recording, saved_settings
from train.rl_env import DecodingLog
from train.rl_replays import Replays

ENVS = 5


@pytest.fixture
def settings(tmp_path):
    return saved_settings(tmp_path, random_recording(np.random.default_rng(3), texts=6))


def test_figures_are_those_of_the_infos(settings):
    replays = Replays([settings["recording"]], {k: v for k, v in settings.items() if k != "recording"})
    log = DecodingLog(ReplaySB3VecEnv(ENVS, **settings), replays.least_seconds)
    log.seed(0)
    log.reset()
    rng = np.random.default_rng(0)
    ended, choices, pairs = [], [], []
    last = [None] * ENVS
    for _ in range(60):
        actions = rng.integers(0, len(BANK), size=ENVS)
        _, _, dones, infos = log.step(actions)
        choices += actions.tolist()
        pairs += [(a, b) for a, b in zip(last, actions, strict=True) if a is not None]
        last = [None if done else a for a, done in zip(actions, dones, strict=True)]
        ended += [info for info in infos if info]
    tokens, seconds = (sum(info[f"total_{name}"] for info in ended) for name in ("tokens", "seconds"))
    least = sum(replays.least_seconds[info["prompt_id"]] for info in ended)
    steps = sum(info["episode"]["l"] for info in ended)
    assert log.take_figures() == pytest.approx(
        {
            "tokens_per_second": tokens / seconds,
            "accept_length": tokens / steps - 1,
            "regret": seconds / least,
            "switch_rate": np.mean([a != b for a, b in pairs]),
        }
        | {f"action_{k}": choices.count(k) / len(choices) for k in range(len(BANK))}
    )
    assert log.take_figures() == {f"action_{k}": 0 for k in range(len(BANK))}


def test_the_actions_lead_back_to_the_same_state(settings):
    times = {f"t{i}": 1.0 for i in range(6)}
    logs = [DecodingLog(ReplaySB3VecEnv(ENVS, **settings), times) for _ in range(2)]
    for log in logs:
        log.seed(7)
        log.reset()
    rng = np.random.default_rng(0)
    for _ in range(30):
        observations, rewards, dones, _ = logs[0].step(rng.integers(0, len(BANK), size=ENVS))
    for actions in logs[0].actions:
        again = logs[1].step(actions)
    for one, other in zip((observations, rewards, dones), again, strict=False):
        np.testing.assert_array_equal(one, other)
    logs[0].reset()
    assert logs[0].actions == []
