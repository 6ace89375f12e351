import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import train.record
from entmtp_env.decoding import TreeDecoder, make_acceptance, save_heads
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.recorder import Recorder, text_seed
from entmtp_env.replay.recording import Recording
from entmtp_env.trees import DraftTree, TopologyBank
from tests.tiny import EOS, save_tiny_model, tiny_backbone, tiny_heads, tiny_model
from train.record import Record, record

CAP = 10


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(train.record, "_PART_TEXTS", 2)


@pytest.fixture
def config(tiny_files, tmp_path):
    return Record(
        prompts=(tiny_files.prompts,),
        out=tmp_path / "r.npz",
        model=tiny_files.model,
        heads=tiny_files.heads,
        acceptance="sample:temperature=0.8",
        max_new_tokens=CAP,
        slots=2,
        dtype="float32",
        device="cpu",
    )


@pytest.fixture
def bank(tmp_path):
    TopologyBank([DraftTree.chain(3), DraftTree("wide", ((0,), (1,)))]).save(tmp_path / "bank.json")
    return str(tmp_path / "bank.json")


def assert_same(first, second):
    """Equal but for rounding: passes of other batches."""
    assert first.texts == second.texts
    assert first.candidates == second.candidates
    for name in ("offsets", "tokens", "ranks", "root_shape"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    for name in ("base_top1", "base_entropy", "head_top1", "head_entropy", "path_values"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-3, atol=1e-5)


def ids(recording):
    return [text.prompt_id for text in recording.texts]


@pytest.mark.parametrize("acceptance", ["greedy", "sample:temperature=0.8"])
def test_the_texts_are_those_of_the_live_decoder(config, acceptance):
    config = dataclasses.replace(config, acceptance=acceptance, seed=3)
    recording = record(config)
    assert_same(Recording.load(config.out), recording)
    engine = get_engine(config.model, config.heads, "float32", "cpu")
    decoder = TreeDecoder(engine.backbone, engine.heads, capacity=128, eos_token_ids=frozenset({EOS}))
    prompts = load_prompts(config.prompts[0])
    assert ids(recording) == [prompt.prompt_id for prompt in prompts]
    for number, (prompt, text) in enumerate(zip(prompts, recording.texts, strict=True)):
        tokens = engine.encode(prompt)
        assert text.seed == text_seed(3, prompt.prompt_id, tokens)
        decoder.start(tokens, make_acceptance(acceptance), max_new_tokens=CAP, seed=text.seed)
        while not decoder.finish_reason:
            decoder.step(DraftTree.chain(2))
        first, last = recording.offsets[number : number + 2]
        assert recording.tokens[first:last].tolist() == [*decoder.tokens, decoder.root]
        assert (text.prompt_tokens, text.finish_reason) == (len(tokens), decoder.finish_reason)
        assert text.text == engine.decode(decoder.tokens)


def test_the_manifest_says_how_it_was_recorded(config, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "train", "record"])
    manifest = record(config).manifest
    engine = get_engine(config.model, config.heads, "float32", "cpu").manifest
    expected = {
        "acceptance": "sample:temperature=0.8",
        "max_new_tokens": CAP,
        "approximate": False,
        "consistency": 1.0,
        "seed": 0,
        "prompts": list(config.prompts),
    }
    run = manifest.pop("run")
    assert manifest == engine | expected
    assert run["command"].endswith("-m train record")


def test_candidates_are_the_union_of_a_bank(config, bank):
    recording = record(dataclasses.replace(config, candidates=bank))
    assert recording.candidates.nodes == ((0,), (1,), (0, 0), (0, 0, 0))
    np.testing.assert_allclose(recording.path_values[:, 0], recording.head_top1[:, 0], rtol=2**-10)
    assert record(dataclasses.replace(config, out=config.out.with_name("none.npz"))).path_values.size == 0


def stop_at_part(monkeypatch, number):
    """Let the process die after so many parts; returns what is recorded from now on."""
    recorded, real = [], Recorder.record

    def dying(recorder, texts):
        if len(recorded) == number:
            raise KeyboardInterrupt
        recorded.append(texts)
        return real(recorder, texts)

    monkeypatch.setattr(Recorder, "record", dying)
    return recorded


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_an_interrupted_run_goes_on(config, monkeypatch, bank, parts):
    config = dataclasses.replace(config, candidates=bank)
    whole = record(dataclasses.replace(config, out=config.out.with_name("whole.npz")))
    with monkeypatch.context() as patch:
        stop_at_part(patch, parts)
        with pytest.raises(KeyboardInterrupt):
            record(config)
    assert not config.out.exists()
    if parts:
        (config.parts / ".00002.npz.torn").write_bytes(b"PK")
    recorded = stop_at_part(monkeypatch, 9)
    assert_same(record(config), whole)
    assert sum(map(len, recorded)) == 6 - 2 * parts
    assert_same(Recording.load(config.out), whole)
    assert not config.parts.exists()


KILLED_AFTER_THE_SECOND_PART = """
import os, signal, sys
import train.record
from train.record import Record, record
train.record._PART_TEXTS = 2
replace, parts = os.replace, []
def counting(source, target):
    replace(source, target)
    parts.append(target)
    if len(parts) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = counting
record(eval(sys.argv[1], {"Record": Record, "PosixPath": __import__("pathlib").Path}))
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_run_goes_on(config):
    whole = record(dataclasses.replace(config, out=config.out.with_name("whole.npz")))
    command = [sys.executable, "-c", KILLED_AFTER_THE_SECOND_PART, repr(config)]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert not config.out.exists()
    assert len(list(config.parts.glob("*.npz"))) == 2
    assert_same(record(config), whole)
    assert not config.parts.exists()


def test_a_run_killed_while_it_removed_its_parts_goes_on(config, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: None)
        whole = record(config)
    recorded = stop_at_part(monkeypatch, 9)
    (config.parts / "00000.npz").unlink()
    assert_same(record(config), whole)
    assert (recorded, config.parts.exists()) == ([], False)


def test_a_whole_file_stays_as_it_is(config, capsys):
    recording = record(config)
    tokens = recording.lengths.sum()
    out = re.escape(str(config.out))
    error = capsys.readouterr().err
    assert re.search(r"recording, \d+ tok/s +6/6 .* left ", error)
    assert re.search(
        rf"^6 texts with {tokens} tokens are in {out}; 6 of them .* now, at \d+ tok/s$", error, re.M
    )
    before = config.out.read_bytes()
    assert_same(record(config), recording)
    assert config.out.read_bytes() == before
    assert re.search(rf"in {out}; 0 of them recorded now$", capsys.readouterr().err, re.M)


def test_further_prompts_are_added_behind(config, tmp_path, monkeypatch):
    further = tmp_path / "further.jsonl"
    further.write_text("".join(json.dumps({"prompt": f"w{i} w3"}) + "\n" for i in range(3)))
    first = record(dataclasses.replace(config, num_prompts=2))
    assert ids(first) == ["t0", "t1"]
    second = record(dataclasses.replace(config, prompts=(str(further),)))
    recorded = stop_at_part(monkeypatch, 9)
    third = record(dataclasses.replace(config, prompts=(config.prompts[0], str(further))))
    assert sorted(text.prompt_id for texts in recorded for text in texts) == ["t2", "t3", "t4", "t5"]
    added = [f"further-{i}" for i in (1, 2, 3)]
    assert (ids(second), ids(third)) == ([*ids(first), *added], [*ids(first), *added, "t2", "t3", "t4", "t5"])
    assert third.manifest["prompts"] == [config.prompts[0], str(further)]
    assert_same(third.select([0, 1]), first)
    monkeypatch.undo()
    at_once = record(dataclasses.replace(config, out=tmp_path / "whole.npz"))
    assert_same(third.select([0, 1, 5, 6, 7, 8]), at_once)


def test_consistency_is_that_of_all_texts(config, monkeypatch):
    real, shares = Recorder.record, iter([0.5, 1.0, 0.75])
    parts = []

    def record_with_a_share(recorder, texts):
        part = real(recorder, texts)
        parts.append(dataclasses.replace(part, manifest=part.manifest | {"consistency": next(shares)}))
        return parts[-1]

    monkeypatch.setattr(Recorder, "record", record_with_a_share)
    recording = record(config)
    expected = np.average([0.5, 1.0, 0.75], weights=[part.lengths.sum() for part in parts])
    assert recording.manifest["consistency"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": "greedy"}, "acceptance was 'sample:temperature=0.8' and is 'greedy'"),
        ({"max_new_tokens": 11}, "max_new_tokens was 10 and is 11"),
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"dtype": "bfloat16"}, "dtype was 'float32' and is 'bfloat16'"),
        ({"candidates": "default"}, "candidates were a tree of 0 nodes and are another of "),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
def test_other_settings_are_refused(config, monkeypatch, change, message, killed):
    if killed:
        with monkeypatch.context() as patch:
            stop_at_part(patch, 1)
            with pytest.raises(KeyboardInterrupt):
                record(config)
    else:
        record(config)
    (file,) = [path for path in (config.out, *config.parts.glob("*")) if path.exists()]
    before = file.read_bytes()
    with pytest.raises(ValueError, match=rf"{re.escape(str(file))} was recorded .*{message}.*another out"):
        record(dataclasses.replace(config, **change))
    assert file.read_bytes() == before


def test_models_and_heads_are_not_mixed(config, tmp_path):
    record(config)
    save_tiny_model(tmp_path / "model", model=tiny_model(seed=9))
    save_heads(tiny_heads(tiny_backbone(), pack=False, seed=9), tmp_path / "heads.safetensors")
    with pytest.raises(ValueError, match="model_fingerprint was"):
        record(dataclasses.replace(config, model=str(tmp_path / "model")))
    with pytest.raises(ValueError, match="heads_fingerprint was"):
        record(dataclasses.replace(config, heads=str(tmp_path / "heads.safetensors")))


def test_a_text_may_take_less_than_a_tick_of_the_clock(config, monkeypatch):
    """time.monotonic() of Windows advances 64 times a second."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert record(config).texts == record(config).texts


def test_another_prompt_of_the_same_name_is_refused(config, tmp_path):
    record(config)
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text("".join(json.dumps({"id": name, "prompt": "w1"}) + "\n" for name in ("new", "t3")))
    with pytest.raises(ValueError, match="prompt 't3' is another one now"):
        record(dataclasses.replace(config, prompts=(str(renamed),)))


def test_sets_that_share_an_id_are_refused(config):
    with pytest.raises(ValueError, match=r"--prompts: .*prompts.jsonl and .*:evaluation share the id 't3'"):
        record(dataclasses.replace(config, prompts=(config.prompts[0], f"{config.prompts[0]}:evaluation")))


def test_a_prompt_too_long_is_named_before_anything_is_written(config):
    with pytest.raises(ValueError, match="prompt 't0' of 1 tokens needs 513 positions"):
        record(dataclasses.replace(config, max_new_tokens=511))
    assert not config.parts.exists()


def test_a_foreign_file_is_left_alone(config):
    config.out.write_text("mine")
    with pytest.raises(ValueError, match="damaged or is no recording"):
        record(config)
    assert config.out.read_text() == "mine"


def test_typical_needs_approximate(config, capsys):
    with pytest.raises(ValueError, match="typical"):
        dataclasses.replace(config, acceptance="typical")
    recording = record(dataclasses.replace(config, acceptance="typical", approximate=True))
    assert recording.approximate
    assert "replays of it are approximate" in capsys.readouterr().err
    greedy = record(dataclasses.replace(config, acceptance="greedy", out=config.out.with_name("greedy.npz")))
    assert recording.tokens.tolist() == greedy.tokens.tolist()
    assert "replays of it" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": Path("r.npy")}, "must end in .npz"),
        ({"prompts": ()}, "at least one set"),
        ({"num_prompts": -1}, "num_prompts must be"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"slots": 0}, "slots"),
        ({"acceptance": "hopeful"}, "hopeful"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **change)
