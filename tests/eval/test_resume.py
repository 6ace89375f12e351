import dataclasses
import json
import shutil

import numpy as np
import pytest

from eval.compare import compare
from eval.replay import Replay, replay
from eval.resume import continued_manifest, keep_finished, stored_part
from eval.stored import load_results
from tests.eval.tiny_results import tiny_results
from tests.recordings import COSTS, random_recording


@pytest.fixture
def folder(tiny_files, tmp_path):
    return shutil.copytree(tiny_results(tiny_files), tmp_path / "results")


def test_a_folder_without_a_whole_episode_is_begun_anew(folder, tmp_path):
    assert stored_part(tmp_path / "nowhere") is None
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text()[:40])
    assert stored_part(folder) is None


def test_what_was_being_written_is_cut_off(folder):
    whole = {name: (folder / name).read_bytes() for name in ("steps.jsonl", "episodes.jsonl")}
    stored = load_results(folder)
    (folder / "steps.jsonl").write_bytes(whole["steps.jsonl"] + b'{"prompts": "x", "pol')
    (folder / "episodes.jsonl").write_bytes(whole["episodes.jsonl"] + b"{")
    keep_finished(stored)
    assert {name: (folder / name).read_bytes() for name in whole} == whole
    kept = dataclasses.replace(stored, runs=stored.runs[:-1])
    keep_finished(kept)
    assert load_results(folder).runs == kept.runs


def test_the_manifest_of_the_same_run_goes_on(folder):
    stored = load_results(folder)
    now = stored.manifest | {"time": "later", "command": "python -m eval compare --resume"}
    now["settings"] = now["settings"] | {"resume": True, "out": "elsewhere"}
    first = continued_manifest(stored, now)
    entry = {"time": "later", "command": now["command"], "code": now["code"]}
    assert first == stored.manifest | {"resumed": [entry]}
    second = continued_manifest(dataclasses.replace(stored, manifest=first), now | {"time": "last"})
    assert [entry["time"] for entry in second["resumed"]] == ["later", "last"]


@pytest.mark.parametrize(
    ("key", "inner", "value"),
    [
        ("settings", "max_new_tokens", 25),
        ("settings", "policies", ["random"]),
        ("machine", "processor", "another"),
        ("libraries", "torch", "0.1"),
        ("prompt_seeds", "another", {"q": 1}),
        ("prompt_texts", "another", "other texts"),
        ("policies", "another", {"threshold@file.json": "other file"}),
    ],
)
def test_another_run_is_refused_by_what_differs(folder, key, inner, value):
    stored = load_results(folder)
    now = stored.manifest | {key: stored.manifest[key] | {inner: value}}
    with pytest.raises(ValueError, match=rf"cannot be resumed: {key}\.{inner}.* is .*choose another --out"):
        continued_manifest(stored, now)


def test_other_code_is_refused_only_where_it_may_change_a_timing(folder):
    stored = load_results(folder)
    code = {"fingerprint": "0" * 16, "commit": "c0ffee", "changed": False}
    stored = dataclasses.replace(stored, manifest=stored.manifest | {"code": code})
    plots = stored.manifest | {"code": code | {"commit": "beef", "changed": True}}
    manifest = continued_manifest(stored, plots)
    assert manifest["code"] == code
    assert manifest["resumed"][-1]["code"] == plots["code"]
    decoder = plots | {"code": plots["code"] | {"fingerprint": "1" * 16}}
    with pytest.raises(ValueError, match=r"code\.fingerprint was .* as at commit c0ffee, or delete \"code\""):
        continued_manifest(stored, decoder)
    silent = {key: value for key, value in stored.manifest.items() if key != "code"}
    resumed = continued_manifest(dataclasses.replace(stored, manifest=silent), decoder)["resumed"]
    assert resumed[-1]["code"] == decoder["code"]


def test_a_refused_comparison_keeps_its_files(config, decoder):
    settings = config()
    compare(settings)
    before = {path.name: path.read_bytes() for path in settings.out.iterdir()}
    decoder.log.clear()
    with pytest.raises(ValueError, match=r"settings\.max_new_tokens was 24, is 16"):
        compare(dataclasses.replace(settings, resume=True, max_new_tokens=16))
    assert {path.name: path.read_bytes() for path in settings.out.iterdir()} == before
    assert decoder.log == []


def test_resume_needs_a_folder_and_not_overwrite(config):
    with pytest.raises(ValueError, match="resume needs the folder"):
        compare(config(resume=True, out=None))
    with pytest.raises(ValueError, match="pass one of them"):
        compare(config(resume=True, overwrite=True))


def test_results_of_another_command_are_never_resumed(config, decoder, tmp_path):
    recording = tmp_path / "texts.npz"
    random_recording(np.random.default_rng(0), depth=4).save(recording)
    settings = config(resume=True)
    replay(Replay((str(recording),), ("random",), costs=COSTS, bootstrap_samples=9, out=settings.out))
    before = {path.name: path.read_bytes() for path in settings.out.iterdir()}
    assert "summary.json" in before
    with pytest.raises((FileExistsError, FileNotFoundError, ValueError), match=str(settings.out)):
        compare(settings)
    assert {path.name: path.read_bytes() for path in settings.out.iterdir()} == before
    assert decoder.log == []


def test_a_comparison_that_was_killed_in_its_first_text_is_begun_anew(config):
    settings = config()
    compare(settings)
    (settings.out / "summary.json").unlink()
    for name in ("episodes.jsonl", "steps.jsonl"):
        (settings.out / name).write_text("")
    compare(dataclasses.replace(settings, resume=True))
    assert len(load_results(settings.out).runs) == 4 * 6


def test_a_summary_is_not_given_up_for_the_lack_of_its_episodes(config):
    settings = config()
    compare(settings)
    (settings.out / "episodes.jsonl").unlink()
    with pytest.raises(FileExistsError, match=r"other results .*summary\.json.*no comparison to resume"):
        compare(dataclasses.replace(settings, resume=True))
    assert (settings.out / "summary.json").is_file()


def test_resuming_nothing_is_a_run(config):
    settings = config(resume=True)
    compare(settings)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert "resumed" not in manifest
    assert len(load_results(settings.out).runs) == 4 * 6
