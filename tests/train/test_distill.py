import dataclasses
import functools
import gc
import gzip
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

import train.distill
from entmtp_env.decoding import GreedyRule, SampleRule, TreeDecoder
from entmtp_env.models import load_pretrained
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import DraftTree
from tests.tiny import EOS, save_tiny_model, tiny_backbone, tiny_heads
from train.distill import Distill, distill, plan_jobs
from train.texts import read_texts
from train.training_prompts import training_prompts

WORDS = [[(5 * i + 3 * j) % 20 for j in range(1 + i % 7)] for i in range(15)]
TEMPERATURES = (0.0, 0.7, 1.0)


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    monkeypatch.setattr(train.distill, "load_pretrained", _load)


_load = functools.cache(load_pretrained)


@pytest.fixture
def config(tiny_files, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": " ".join(f"w{w}" for w in p)}) + "\n" for p in WORDS))
    return Distill(
        prompts=(str(path),),
        out=tmp_path / "texts.jsonl.gz",
        model=tiny_files.model,
        texts_per_prompt=2,
        max_new_tokens=12,
        slots=4,
        device="cpu",
        dtype="float32",
    )


def lines(config):
    return gzip.decompress(config.out.read_bytes()).decode().splitlines()


def manifest_of(config):
    return Path(f"{config.out}.manifest.json")


def test_the_texts_are_those_of_the_tree_decoder(config):
    distill(config)
    rows = {row["id"]: row for row in map(json.loads, lines(config))}
    backbone = tiny_backbone()
    decoder = TreeDecoder(backbone, tiny_heads(backbone), capacity=128, eos_token_ids=frozenset({EOS}))
    prompts, _ = training_prompts(config.prompts)
    seeds = {job.text_id: job.seed for job in plan_jobs(config, [(p, [1]) for p in prompts])}
    assert len(rows) == len(set(seeds.values())) == 30
    for (i, words), j in itertools.product(enumerate(WORDS), range(2)):
        text_id, temperature = f"mine/mine-{i + 1}#{j}", TEMPERATURES[(i + j) % 3]
        prompt = [3 + word for word in words]
        rule = SampleRule(temperature) if temperature else GreedyRule()
        decoder.start(prompt, max_new_tokens=12, rule=rule, seed=seeds[text_id])
        while not decoder.finish_reason:
            decoder.step(DraftTree.chain(2))
        expected = {"p": prompt, "g": decoder.tokens, "t": temperature, "id": text_id, "s": "mine"}
        assert rows[text_id] == expected
    texts = {(t.prompt, t.reply) for t in read_texts(config.out)}
    assert texts == {(tuple(r["p"]), tuple(r["g"])) for r in rows.values() if len(r["g"]) > 1}


def test_a_text_may_take_less_than_a_tick_of_the_clock(config, monkeypatch):
    """time.monotonic() of Windows advances 64 times a second."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    distill(config)
    assert len(read_texts(config.out)) > 0


def test_the_seed_changes_sampled_texts_and_only_them(config):
    texts = []
    for seed in (0, 1):
        shutil.rmtree(config.out.parent / "run", ignore_errors=True)
        run = dataclasses.replace(config, seed=seed, out=config.out.parent / "run" / "texts.jsonl.gz")
        distill(run)
        texts.append({row["id"]: (row["t"], row["g"]) for row in map(json.loads, lines(run))})
    same = [texts[0][text_id] == texts[1][text_id] for text_id in texts[0]]
    greedy = [texts[0][text_id][0] == 0 for text_id in texts[0]]
    assert all(equal for equal, certain in zip(same, greedy, strict=True) if certain)
    assert not any(equal for equal, certain in zip(same, greedy, strict=True) if not certain)


def test_a_file_cut_anywhere_is_completed(config):
    distill(config)
    whole, data = sorted(lines(config)), config.out.read_bytes()
    cuts = [0, 1, len(data) - 1, *random.Random(0).sample(range(len(data)), 9)]
    for number, cut in enumerate(cuts):
        config.out.write_bytes(data[:cut])
        distill(dataclasses.replace(config, slots=1 + number))
        assert sorted(lines(config)) == whole


KILLED_AT_THE_SECOND_CHUNK = """
import os, signal, sys
from train.__main__ import main
sync, calls = os.fsync, []
def fsync(handle):
    sync(handle)
    calls.append(handle)
    if len(calls) == 2:
        os.truncate(handle, os.fstat(handle).st_size - 9)
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
main(sys.argv[1:])
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_killed_run_is_completed(config):
    whole = dataclasses.replace(config, out=config.out.with_name("whole.jsonl.gz"))
    distill(whole)
    flags = ["--prompts", *config.prompts, "--out", str(config.out), "--model", config.model]
    flags += ["--texts-per-prompt", "2", "--max-new-tokens", "12", "--slots", "4"]
    flags += ["--device", "cpu", "--dtype", "float32"]
    command = [sys.executable, "-c", KILLED_AT_THE_SECOND_CHUNK, "distill", *flags]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr
    with pytest.raises(ValueError, match="damaged"):
        read_texts(config.out)
    distill(config)
    assert sorted(lines(config)) == sorted(lines(whole))


def test_a_finished_file_stays_as_it_is(config, capsys):
    distill(config)
    before = config.out.read_bytes(), manifest_of(config).read_bytes()
    distill(config)
    assert (config.out.read_bytes(), manifest_of(config).read_bytes()) == before
    assert "0 of them written now" in capsys.readouterr().err


def test_progress_and_the_end_are_told(config, capsys):
    distill(config)
    error = capsys.readouterr().err
    tokens = sum(len(json.loads(line)["g"]) for line in lines(config))
    assert re.search(r"writing texts, \d+ tok/s +30/30 .* left ", error)
    end = rf"^30 texts with {tokens} tokens are in {re.escape(str(config.out))}; 30 of them .* at \d+ tok/s$"
    assert re.search(end, error, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed was 0 and is 1; go on with those in .*manifest"),
        ({"temperatures": (0.0, 0.7)}, "temperatures was"),
        ({"texts_per_prompt": 1}, "texts_per_prompt was"),
        ({"max_new_tokens": 13}, "max_new_tokens was"),
        ({"max_prompt_tokens": 5}, "prompts_fingerprint was"),
        ({"prompts": ("math:calibration",)}, "prompts_fingerprint was"),
        ({"dtype": "bfloat16"}, "dtype was 'float32' and is 'bfloat16'"),
    ],
)
def test_another_setting_is_refused(config, change, message):
    distill(config)
    before = config.out.read_bytes(), manifest_of(config).read_bytes()
    with pytest.raises(ValueError, match=message):
        distill(dataclasses.replace(config, **change))
    assert (config.out.read_bytes(), manifest_of(config).read_bytes()) == before


def test_another_model_is_refused(config, tmp_path):
    distill(config)
    save_tiny_model(tmp_path / "other", eos=5)
    with pytest.raises(ValueError, match=r"eos_token_ids was \[2\] and is \[5\]"):
        distill(dataclasses.replace(config, model=str(tmp_path / "other")))


@pytest.mark.parametrize("content", [None, "", "[]", "{}"])
def test_a_file_of_unknown_origin_is_refused(config, content):
    distill(config)
    before = config.out.read_bytes()
    manifest_of(config).unlink()
    if content is not None:
        manifest_of(config).write_text(content)
    with pytest.raises(ValueError, match=r"cannot read .*manifest\.json.*give another out"):
        distill(config)
    assert config.out.read_bytes() == before


def test_the_manifest_says_how_the_texts_were_made(config, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/anywhere/train/__main__.py", "distill", "--seed", "0"])
    excluded = Path(config.prompts[0]).with_name("kept out.jsonl")
    excluded.write_text(json.dumps({"prompt": " ".join(f"w{w}" for w in WORDS[0])}))
    distill(dataclasses.replace(config, exclude=(excluded,)))
    manifest = json.loads(manifest_of(config).read_text())
    assert manifest["command"] == "python -m train distill --seed 0"
    assert (manifest["model"], manifest["prompts"]) == (config.model, list(config.prompts))
    assert (manifest["dtype"], manifest["device"]) == ("float32", "cpu")
    assert manifest["exclude"] == [str(excluded)]
    assert manifest["settings"]["model_fingerprint"] == _load(config.model).fingerprint
    assert manifest["settings"]["temperatures"] == list(TEMPERATURES)


def test_the_model_as_it_was_loaded_is_given_back_before_the_writing(config, monkeypatch):
    alive, seen = [], []

    def load(name):
        pretrained = load_pretrained(name)
        alive.append(weakref.ref(pretrained.model))
        return pretrained

    def write(*_, **__):
        gc.collect()
        seen.append(alive[0]())
        return iter(())

    monkeypatch.setattr(train.distill, "load_pretrained", load)
    monkeypatch.setattr(train.distill, "generate_batch", write)
    distill(config)
    assert seen == [None]


def test_prompts_that_are_reserved_or_too_long_are_left_out_and_counted(config, capsys):
    path = Path(config.prompts[0])
    with path.open("a") as file:
        for prompt in load_prompts("math:evaluation")[:2]:
            file.write(json.dumps({"prompt": prompt.text}) + "\n")
    distill(dataclasses.replace(config, max_prompt_tokens=5))
    ids = {json.loads(line)["id"] for line in lines(config)}
    assert ids == {f"mine/mine-{i}#{j}" for i, p in enumerate(WORDS, start=1) if len(p) < 6 for j in (0, 1)}
    assert "11 prompts; left out: 2 kept for evaluation, 4 longer than 5 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"max_new_tokens": 511}, {"max_new_tokens": 600}, {"exclude": True}])
def test_no_prompt_left_is_an_error(config, tmp_path, change):
    path = tmp_path / "long.jsonl"
    path.write_text('{"prompt": "w1 w2"}\n')
    change = {"exclude": (path,)} if "exclude" in change else change
    with pytest.raises(ValueError, match="no prompt is left"):
        distill(dataclasses.replace(config, prompts=(str(path),), **change))
    assert not config.out.exists()
    assert not manifest_of(config).exists()


def test_no_text_is_cut_by_the_context(config, tmp_path):
    """The model has 512 positions."""
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"prompt": " ".join(["w1"] * n)}) + "\n" for n in (499, 500, 501)))
    distill(dataclasses.replace(config, prompts=(str(path),)))
    rows = [json.loads(line) for line in lines(config)]
    assert sorted(len(row["p"]) for row in rows) == [499, 499, 500, 500]
    assert all(len(row["g"]) == 12 or row["g"][-1] == EOS for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": Path("texts.jsonl")}, r"\.jsonl\.gz, got texts\.jsonl"),
        ({"out": Path("texts.gz")}, r"\.jsonl\.gz"),
        ({"prompts": ()}, "at least one"),
        ({"temperatures": ()}, "at least one"),
        ({"temperatures": (0.0, -0.5)}, "temperatures must be"),
        ({"temperatures": (float("nan"),)}, "temperatures must be"),
        ({"temperatures": (float("inf"),)}, "temperatures must be"),
        ({"texts_per_prompt": 0}, "at least 1"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"slots": 0}, "at least 1"),
        ({"texts_per_prompt": 4}, "greedy text twice"),
        ({"texts_per_prompt": 2, "temperatures": (0.0, 1.0, 0.0)}, "greedy text twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, **change)


def test_every_prompt_may_have_a_text_of_each_temperature(config):
    dataclasses.replace(config, texts_per_prompt=3)
    dataclasses.replace(config, texts_per_prompt=9, temperatures=(0.7, 1.0))
    dataclasses.replace(config, texts_per_prompt=1, temperatures=(0.0, 0.0, 1.0))
