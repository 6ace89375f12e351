import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.sealed_npz import load_sealed
from policies import make_policy
from policies.lockstep import replay
from tests.train.told_bit import BANK, COSTS, told_bit_recording
from train.value import ValueTraining, train_value

METHODS = {"value": "value", "imitation": "learned", "improvement": "learned"}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Settings of a training on 24 texts, with 16 others held out."""
    folder = tmp_path_factory.mktemp("value")
    recording = told_bit_recording(40)
    recording.select(range(24)).save(folder / "own.npz")
    recording.select(range(24, 40)).save(folder / "others.npz")
    BANK.save(folder / "bank.json")
    return ValueTraining(
        out=folder / "policies",
        recordings=(str(folder / "own.npz"),),
        held_out=(str(folder / "others.npz"),),
        costs=COSTS,
        bank=str(folder / "bank.json"),
        rounds=1,
        epochs=30,
    )


@pytest.fixture(scope="module")
def trained(config):
    train_value(config)
    return config


def others(config, costs=COSTS):
    return dataclasses.replace(config, costs=costs).environments(*config.held_out)


def regret(envs: ReplayVectorEnv, spec: str):
    played = replay(envs, make_policy(spec, envs), [text.prompt_id for text in envs.prompts])
    return sum(episode.seconds for episode in played.episodes) / solve(envs.tables).seconds.sum()


@pytest.mark.parametrize("method", METHODS)
def test_a_bit_that_tells_the_best_tree_is_found(trained, method):
    envs = others(trained)
    spec = f"{METHODS[method]}@{trained.path(method)}"
    assert min(regret(envs, f"static:{tree}") for tree in BANK.names) > 1.3
    assert regret(envs, spec) < 1.05


@pytest.mark.parametrize(("costs", "best"), [("node=0.5", "autoregressive"), ("node=0.00001", "chain-3")])
def test_expected_tokens_serve_other_costs_without_training(trained, costs, best):
    envs = others(trained, f"analytic:base=0.02,{costs}")
    own, fixed = (regret(envs, f"{METHODS[m]}@{trained.path(m)}") for m in ("value", "improvement"))
    assert own < 1.05
    assert own <= regret(envs, f"static:{best}") + 1e-3
    assert (fixed > 1.3) == (best == "autoregressive")


def test_the_files_tell_how_they_were_made(trained):
    record = load_sealed(trained.path("value"), "policy")[0]["calibration"]
    rows = {row["policy"]: row for row in record["held_out"]}
    envs = others(trained)
    for method, policy in METHODS.items():
        assert rows[method]["regret"] == pytest.approx(regret(envs, f"{policy}@{trained.path(method)}"))
    assert record["settings"]["rounds"] == 1
    assert record["environment"]["bank_fingerprint"] == BANK.fingerprint
    assert record["texts"] == 24
    assert record["held_out_r2"]["chain-3"] > 0.9
    assert "autoregressive" not in record["held_out_r2"]


def test_a_seed_fixes_everything_and_the_table_is_printed(config, tmp_path, capsys):
    short = dataclasses.replace(config, epochs=2, rounds=0)
    networks = [
        train_value(dataclasses.replace(short, out=tmp_path / name, seed=seed))["value"].network.weights[0]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    np.testing.assert_array_equal(networks[0], networks[1])
    assert (networks[0] != networks[2]).any()
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("oracle", "imitation", "static:", "R²", "wrote"))


def test_without_held_out_recordings_every_fourth_text_is_set_aside(config, tmp_path):
    alone = dataclasses.replace(config, out=tmp_path, held_out=(), epochs=1, rounds=0, methods=("imitation",))
    train_value(alone)
    record = load_sealed(alone.path("imitation"), "policy")[0]["calibration"]
    assert record["texts"] == 18
    assert not alone.path("value").exists()


@pytest.mark.parametrize("part", ["recordings", "held_out"])
def test_a_cache_that_would_cut_texts_is_refused(config, tmp_path, part):
    own = told_bit_recording(6)
    texts = [
        dataclasses.replace(text, prompt_id=f"long{i}", prompt_tokens=40) for i, text in enumerate(own.texts)
    ]
    dataclasses.replace(own, texts=tuple(texts)).save(tmp_path / "long.npz")
    changed = {"out": tmp_path / "out", "capacity": 64, part: (str(tmp_path / "long.npz"),)}
    with pytest.raises(ValueError, match=r"text 'long\d' .* do not fit into 64 KV rows.*raise the capacity"):
        train_value(dataclasses.replace(config, **changed))


def test_faults(trained, tmp_path):
    with pytest.raises(FileExistsError, match=r"value\.npz.*--overwrite"):
        train_value(trained)
    with pytest.raises(ValueError, match="held-out texts are trained on, too"):
        train_value(dataclasses.replace(trained, out=tmp_path, held_out=trained.recordings))
    told_bit_recording(1).save(tmp_path / "one.npz")
    lonely = dataclasses.replace(
        trained, out=tmp_path, recordings=(str(tmp_path / "one.npz"),), methods=("value",)
    )
    with pytest.raises(ValueError, match="one text to train on"):
        train_value(lonely)
    with pytest.raises(ValueError, match="'context_fraction'"):
        train_value(dataclasses.replace(trained, out=tmp_path, features="token", epochs=1))
    with pytest.raises(ValueError, match="epochs=0"):
        dataclasses.replace(trained, epochs=0)
    with pytest.raises(ValueError, match="must each name at least one"):
        dataclasses.replace(trained, methods=())
