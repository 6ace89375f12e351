import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import trim_mean

pytest.importorskip("stable_baselines3")
pytest.importorskip("tensorboard")

from entmtp_env.replay.shipped import load_recording
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, load_bank
from policies import make_policy
from policies.lockstep import replay
from tests.train.told_bit import COSTS, SETTINGS, told_bit_recording
from train.ablate import Ablation, ablate
from train.ablate_cell import Cell
from train.rl_replays import Replays

BANK = TopologyBank([DraftTree.chain(3), AUTOREGRESSIVE, DraftTree.chain(1)], name="three")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """An ablation on 32 texts, of which 8 choose, with 8 others held out."""
    folder = tmp_path_factory.mktemp("texts")
    recording = told_bit_recording(40)
    recording.select(range(32)).save(folder / "own.npz")
    recording.select(range(32, 40)).save(folder / "others.npz")
    BANK.save(folder / "bank.json")
    return Ablation(
        what="features",
        recordings=(str(folder / "own.npz"),),
        held_out=(str(folder / "others.npz"),),
        out=folder,
        costs=COSTS,
        bank=str(folder / "bank.json"),
        seeds=2,
        steps=4_000,
        envs=32,
        hidden=(16,),
        evaluate_every=2_000,
        ppo=SETTINGS["ppo"],
    )


def supervised(config, **changes):
    """The same by supervision, which takes no settings of rl."""
    left_out = {"reward", "algo", "steps", "envs", "hidden", "evaluate_every", "ppo"}
    kept = {own.name: getattr(config, own.name) for own in dataclasses.fields(config)}
    kept = {name: value for name, value in kept.items() if name not in left_out}
    return Ablation(**kept | {"train_by": "improvement"} | changes)


def rates(config, spec, **settings):
    """Tokens per second of each held-out text under a policy."""
    replays = Replays(config.held_out, config.environment | settings)
    ids = [text.prompt_id for text in replays.envs.prompts]
    episodes = replay(replays.envs, make_policy(spec, replays.env), ids).episodes
    return np.array([e.tokens / e.seconds for e in episodes])


def test_only_the_features_that_tell_help_and_the_files_say_so(config, tmp_path, capsys):
    config = dataclasses.replace(config, out=tmp_path, cells=("token", "history"))
    token, history = ablate(config)
    assert token["low"] > 1.3
    assert history["high"] < 1.15
    record = json.loads((tmp_path / "features.json").read_text())
    assert record["cells"] == [token, history]
    assert (record["train"]["texts"], record["held_out"]["texts"]) == (32, 8)
    # The policies are there, and are what the numbers are of.
    static = rates(config, record["static"])
    for row, groups in ((token, "token"), (history, "entropy,acceptance")):
        files = [tmp_path / "features" / f"{row['cell']}-{seed}.npz" for seed in (0, 1)]
        scores = np.stack([rates(config, f"learned@{file}", features=groups) for file in files]) / static
        assert row["iqm"] == pytest.approx(trim_mean(scores.ravel(), 0.25))
        assert row["low"] <= row["iqm"] <= row["high"]
        assert row["oracle"] >= max(row["seeds"].values())
    shown = " ".join(capsys.readouterr().out.split())
    *table, _, legend = (tmp_path / "features.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["token", "history"]
    assert f"| {token['iqm']:.3f} |" in " ".join(table[2].split())
    assert "2 seeds x 8 held-out texts" in legend
    assert all(text in shown for text in (f"| {history['iqm']:.3f} |", legend))


def test_an_interrupted_ablation_goes_on_and_takes_more_seeds(config, tmp_path, monkeypatch):
    config = dataclasses.replace(config, what="reward", steps=1_000)
    straight = ablate(dataclasses.replace(config, out=tmp_path / "straight"))
    assert [row["cell"] for row in straight] == [
        "throughput_advantage",
        "tokens_per_second",
        "step_tokens_per_second",
    ]
    run, runs = Cell.run, []

    def fail_at_the_fourth(cell, seed, *parts):
        runs.append(seed)
        if len(runs) == 4:
            raise KeyboardInterrupt
        run(cell, seed, *parts)

    broken = dataclasses.replace(config, out=tmp_path / "broken")
    monkeypatch.setattr(Cell, "run", fail_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        ablate(broken)
    assert ablate(broken) == straight
    assert runs == [0, 0, 0, 1, 1, 1, 1]
    runs.clear()
    alone = ablate(dataclasses.replace(broken, seeds=3, cells=("tokens_per_second",)))
    assert runs == [2]
    assert alone[0]["seeds"].items() > straight[1]["seeds"].items()
    with pytest.raises(ValueError, match=r"tokens_per_second: .*steps was 1000 and is 2000"):
        ablate(dataclasses.replace(broken, steps=2_000, cells=("tokens_per_second",)))


def test_a_seed_whose_row_is_missing_is_trained_again(config, tmp_path, monkeypatch):
    config = dataclasses.replace(config, out=tmp_path, cells=("token",), seeds=1, steps=1_000)

    def fail(cell, policy):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Cell, "_measure", fail)
        with pytest.raises(KeyboardInterrupt):
            ablate(config)
    assert (tmp_path / "features" / "token-0.npz").exists()
    assert len(ablate(config)[0]["seeds"]) == 1


def test_smaller_banks_are_prefixes_and_other_trainers_serve(config, tmp_path):
    config = supervised(config, what="bank-size", out=tmp_path, seeds=1)
    banks = {size: load_bank(training.bank) for size, training in config.trainings().items()}
    assert {size: bank.names for size, bank in banks.items()} == {
        "3": ("autoregressive", "chain-3", "chain-1"),
        "2": ("autoregressive", "chain-3"),
    }
    whole, two = ablate(config)
    # Both trees that the bit decides between are among the first two.
    assert min(whole["iqm"], two["iqm"]) > 1.3
    assert (two["low"], two["high"]) == (None, None)
    assert two["oracle"] <= whole["oracle"]
    with pytest.raises(ValueError, match="has 3 trees; cells must be 2 to that, got '4'"):
        ablate(dataclasses.replace(config, cells=("4",)))


def test_without_candidates_union_is_refused_before_anything_is_trained(config, tmp_path):
    config = supervised(config, what="probe", out=tmp_path, seeds=1)
    with pytest.raises(ValueError, match=r"probe union: .*train record --candidates.*leave it out: --cells"):
        ablate(config)
    assert not list(tmp_path.rglob("*.jsonl"))
    paths = {}
    for name in ("recordings", "held_out"):
        recording = load_recording(getattr(config, name))
        values = np.full((len(recording.tokens), len(BANK.union)), 0.5, dtype=np.float16)
        paths[name] = (str(tmp_path / f"{name}.npz"),)
        dataclasses.replace(recording, candidates=BANK.union, path_values=values).save(paths[name][0])
    rows = ablate(dataclasses.replace(config, **paths))
    assert [row["cell"] for row in rows] == ["none", "first", "chain", "union"]
    assert min(row["iqm"] for row in rows) > 1.3
    names = make_policy(
        f"learned@{tmp_path / 'probe' / 'union-0.npz'}",
        Replays(paths["held_out"], config.environment | {"probe": "union"}).env,
    ).feature_names
    assert "tree_value_2" in names


def test_the_costs_of_each_probe_are_found_by_its_name(config):
    config = dataclasses.replace(config, what="probe", costs="costs-{probe}.json")
    assert [training.costs for training in config.trainings().values()] == [
        "costs-none.json",
        "costs-first.json",
        "costs-chain.json",
        "costs-union.json",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"what": "luck"}, "unknown what 'luck'; choose one of reward, features"),
        ({"train_by": "hand"}, "unknown train_by 'hand'; choose one of rl, value"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"what": "reward", "train_by": "value"}, "supervision has no reward"),
        ({"features": "base"}, "features would have no effect; name the values to try as cells"),
        ({"cells": ("all", "all")}, "cells must differ"),
        ({"overwrite": True}, "overwrite would have no effect"),
        ({"drafts": ("drafts.npz",), "bank": "default"}, "only schedulers of a bank are ablated"),
        (
            {"train_by": "value"},
            "steps, envs, hidden, evaluate_every, ppo would have no effect with train_by value",
        ),
        ({"envs": 0}, "envs must be at least 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **changes)


def test_an_unknown_reward_is_refused_before_anything_is_trained(config, tmp_path):
    config = dataclasses.replace(config, what="reward", cells=("throughput_advantage", "luck"), out=tmp_path)
    with pytest.raises(ValueError, match="reward luck: unknown reward 'luck'"):
        ablate(config)
    assert not list(tmp_path.rglob("*.jsonl"))
