import dataclasses
import sys

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from entmtp_env.sealed_npz import load_sealed
from policies.learned import Learned
from policies.static import Static
from tests.train.told_bit import BANK, told_bit_recording, told_bit_training
from train.rl import train_scheduler
from train.rl_config import A2CSettings, DQNSettings
from train.rl_replays import Replays
from train.rl_trainer import SchedulerTrainer


def contents(config):
    """Header and arrays of the policy file, without what is another one in each run."""
    header, arrays = load_sealed(config.out, "policy")
    record = header["calibration"]
    for point in record["curve"]:
        del point["seconds"]
    for name in ("time", "command"):
        del record[name]
    return header, arrays


def scalars(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("algo", ["ppo", "dqn", "a2c"])
def test_a_scheduler_learns_what_one_bit_tells(tmp_path, algo, capsys):
    config = told_bit_training(tmp_path, algo)
    train_scheduler(config)
    table = capsys.readouterr().out
    assert all(row in table for row in ("static:tree=", "learned", "oracle"))
    # Texts that neither training nor the choice of the policy has seen.
    told_bit_recording(40).select(range(24, 40)).save(tmp_path / "others.npz")
    others = Replays([str(tmp_path / "others.npz")], config.environment)
    learned = others.run(Learned.load(config.out, others.env))
    best_static = min(others.run(Static(others.env, tree))["regret"] for tree in BANK.names)
    assert best_static > 1.3
    assert learned["regret"] < 1.05


@pytest.mark.parametrize("algo", ["ppo", "dqn", "a2c"])
def test_an_interrupted_training_ends_as_if_it_had_not_been(tmp_path, monkeypatch, algo):
    straight = told_bit_training(tmp_path, algo, out=tmp_path / "straight" / "policy.npz", steps=4_000)
    train_scheduler(straight)
    broken = dataclasses.replace(straight, out=tmp_path / "broken" / "policy.npz")
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
    assert broken.state_path.exists()
    train_scheduler(broken)
    assert not broken.state_path.exists()

    (header, arrays), (other_header, other_arrays) = contents(straight), contents(broken)
    steps = [0, 1_504, 3_008, 4_000] if algo == "dqn" else [0, 1_536, 3_072, 4_096]
    assert [point["step"] for point in header["calibration"]["curve"]] == steps
    for record in (header["calibration"], other_header["calibration"]):
        del record["settings"]["out"]
        for part in ("train", "held_out"):
            del record[part]["recordings"]
    assert header == other_header
    assert arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name])
    # What was logged and lost is logged once.
    logged = scalars(broken.folder / "train")["decode/regret"]
    assert [step for step, _ in logged] == sorted({step for step, _ in logged})


def test_the_logs_have_the_documented_figures(tmp_path):
    config = told_bit_training(tmp_path, steps=2_000)
    train_scheduler(config)
    figures = {"tokens_per_second", "accept_length", "regret", "switch_rate", "action_0", "action_1"}
    training, held_out = (scalars(config.folder / run) for run in ("train", "held_out"))
    assert held_out.keys() == {f"decode/{name}" for name in figures}
    assert held_out.keys() < training.keys()
    assert {"train/value_loss", "train/entropy_loss", "train/learning_rate"} < training.keys()
    curve = load_sealed(config.out, "policy")[0]["calibration"]["curve"]
    for name in figures:
        expected = [(point["step"], pytest.approx(point[name])) for point in curve]
        assert held_out[f"decode/{name}"] == expected
    for _, share in training["decode/action_0"]:
        assert 0 < share < 1


def test_the_kept_policy_is_the_best_of_the_curve_and_says_how_it_came_about(tmp_path):
    config = told_bit_training(tmp_path, steps=3_000)
    train_scheduler(config)
    header, _ = load_sealed(config.out, "policy")
    record = header["calibration"]
    best = max(point["tokens_per_second"] for point in record["curve"])
    assert record["results"]["learned"]["tokens_per_second"] == best
    assert record["results"]["oracle"]["regret"] == pytest.approx(1)
    assert record["seed"] == 0
    assert record["settings"]["ppo"]["n_steps"] == 16
    assert "dqn" not in record["settings"]
    assert record["environment"]["bank_fingerprint"] == header["bank_fingerprint"] == BANK.fingerprint
    assert record["train"]["texts"] + record["held_out"]["texts"] == 24
    assert record["train"]["fingerprint"] != record["held_out"]["fingerprint"]
    # Both trees alone make 50 tok/s but for the ends of texts.
    name, reference = record["reward"].split(":reference=")
    assert name == "throughput_advantage"
    assert float(reference) == pytest.approx(50, rel=0.05)


def test_other_rewards_are_trained_on_as_they_are(tmp_path):
    config = told_bit_training(tmp_path, steps=500, reward="step_tokens_per_second")
    train_scheduler(config)
    assert load_sealed(config.out, "policy")[0]["calibration"]["reward"] == "step_tokens_per_second"


def test_seeds_differ_and_repeat(tmp_path):
    networks = []
    for seed in (0, 0, 1):
        config = told_bit_training(tmp_path, steps=500, seed=seed, overwrite=True)
        train_scheduler(config)
        networks.append(load_sealed(config.out, "policy")[1]["weight_0"])
    assert (networks[0] == networks[1]).all()
    assert (networks[0] != networks[2]).any()


def test_a_finished_training_is_replaced_only_when_asked_to(tmp_path):
    config = told_bit_training(tmp_path, steps=500)
    train_scheduler(config)
    finished = config.out.read_bytes()
    with pytest.raises(FileExistsError, match=r"policy\.npz: there already; .*add --overwrite"):
        train_scheduler(config)
    assert config.out.read_bytes() == finished
    train_scheduler(dataclasses.replace(config, overwrite=True, seed=1))
    assert config.out.read_bytes() != finished


def test_the_state_of_another_training_is_refused(tmp_path, monkeypatch):
    config = told_bit_training(tmp_path, steps=500)
    with monkeypatch.context() as patch:
        patch.setattr(SchedulerTrainer, "_finish", lambda trainer: None)
        train_scheduler(config)
    with pytest.raises(ValueError, match="of another training"):
        train_scheduler(dataclasses.replace(config, seed=1))
    config.state_path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot go on from"):
        train_scheduler(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo": "sarsa"}, "unknown algo 'sarsa'; choose one of ppo, dqn, a2c"),
        ({"recordings": ()}, "at least one recording"),
        ({"hidden": ()}, "hidden must name widths"),
        ({"envs": 0}, "envs must be at least 1, got 0"),
        ({"dqn": DQNSettings(gamma=0.7)}, "settings of dqn would have no effect with algo ppo"),
        ({"a2c": A2CSettings(gamma=0.5)}, "settings of a2c would have no effect with algo ppo"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path, changes, message):
    config = told_bit_training(tmp_path)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changes)


@pytest.mark.parametrize("extra", ["stable_baselines3", "tensorboard"])
def test_what_is_not_installed_is_named(tmp_path, monkeypatch, extra):
    for module in [name for name in sys.modules if name.startswith(("train.rl_", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(ValueError, match=rf"training needs {extra}: pip install 'entmtp-env\[rl\]'"):
        train_scheduler(told_bit_training(tmp_path))
