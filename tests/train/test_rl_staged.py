import dataclasses
import itertools

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("tensorboard")

from entmtp_env.replay.sb3 import StagedReplaySB3VecEnv
from entmtp_env.sealed_npz import load_sealed
from policies.staged_learned import StagedLearned
from tests.train.told_bit import STAGES, told_bit_stages
from train.rl import SchedulerTraining, train_scheduler
from train.rl_config import PPOSettings
from train.rl_env import DecodingLog
from train.rl_replays import StagedReplays
from train.rl_trainer import SchedulerTrainer

PPO = PPOSettings(learning_rate=5e-3, n_steps=32, batch_size=256, gamma=0.99, gae_lambda=0.9)


@pytest.fixture
def config(tmp_path):
    return SchedulerTraining(
        out=tmp_path / "policy.npz",
        steps=20_000,
        envs=32,
        hidden=(16,),
        evaluate_every=5_000,
        ppo=PPO,
        **told_bit_stages(tmp_path),
    )


def test_a_scheduler_learns_how_deep_to_draft_from_one_bit(config, capsys):
    train_scheduler(config)
    table = capsys.readouterr().out
    assert all(row in table for row in ("staged-threshold", "staged-learned", "oracle"))
    replays = StagedReplays(config.recordings, config.environment)
    learned = replays.run(StagedLearned.load(config.out, replays.env))
    assert replays.run(replays.best_static)["regret"] > 1.35
    assert learned["regret"] < 1.1
    assert replays.run(replays.plan)["regret"] == pytest.approx(1)
    results = load_sealed(config.out, "policy")[0]["calibration"]["results"]
    assert results["oracle"]["regret"] == pytest.approx(1)


def test_an_interrupted_training_ends_as_if_it_had_not_been(config, tmp_path, monkeypatch):
    straight = dataclasses.replace(config, out=tmp_path / "straight.npz", steps=3_000, evaluate_every=1_000)
    broken = dataclasses.replace(straight, out=tmp_path / "broken.npz")
    train_scheduler(straight)
    try_out, tries = SchedulerTrainer._try_out, []

    def fail_at_the_third(*args):
        tries.append(None)
        if len(tries) == 3:
            raise KeyboardInterrupt
        try_out(*args)

    with monkeypatch.context() as patch:
        patch.setattr(SchedulerTrainer, "_try_out", fail_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            train_scheduler(broken)
    train_scheduler(broken)
    arrays, others = (load_sealed(one.out, "policy")[1] for one in (straight, broken))
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


def test_steps_of_the_log_are_those_that_verify(config):
    replays = StagedReplays(config.recordings, config.environment)
    envs = StagedReplaySB3VecEnv(6, recording=config.recordings, **config.environment)
    log = DecodingLog(envs, replays.least_seconds)
    log.seed(0)
    log.reset()
    rng, steps, own, tokens = np.random.default_rng(0), 0, np.zeros(6, dtype=int), 0
    verified, switched = [[] for _ in range(6)], []
    for _ in range(200):
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in envs.action_masks()])
        _, _, dones, infos = log.step(actions)
        own += actions > 0
        steps += own[dones].sum()
        own[dones] = 0
        for text, action, done in zip(verified, actions.tolist(), dones, strict=True):
            text += [action] * (action > 0)
            if done:
                switched += [a != b for a, b in itertools.pairwise(text)]
                text.clear()
        tokens += sum(info["total_tokens"] for info in infos if info)
    switched += [a != b for text in verified for a, b in itertools.pairwise(text)]
    figures = log.take_figures()
    assert figures["switch_rate"] == pytest.approx(np.mean(switched))
    assert figures["accept_length"] == pytest.approx(tokens / steps - 1)
    assert 0 < figures["action_0"] < 1
    assert f"action_{len(STAGES) - 1}" in figures


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algo": "dqn", "ppo": PPOSettings()}, "algo dqn knows no masks"),
        ({"bank": "smollm2-chat"}, "bank would have no effect with drafts"),
        ({"drafts": ()}, "stages would have no effect without drafts"),
    ],
)
def test_settings_that_have_no_effect(config, changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changed)
