import json
import shutil

import pytest

from eval.compare import compare
from eval.stored import load_results
from tests.eval.tiny_results import staged_results, tiny_results


@pytest.fixture(params=[tiny_results, staged_results])
def folder(tiny_files, tmp_path, request):
    return shutil.copytree(request.param(tiny_files), tmp_path / "results")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_everything_comes_back(folder):
    results = load_results(folder)
    assert results.manifest == json.loads((folder / "manifest.json").read_text())
    assert results.summary == json.loads((folder / "summary.json").read_text())
    lines = read(folder / "steps.jsonl")
    steps = [
        vars(step)
        | {"token_ids": list(detail.token_ids), "text": detail.text, "scores": detail.scores}
        | {"parents": list(detail.parents)}
        for own in results.runs
        for step, detail in zip(own.run.episode.steps, own.run.details, strict=True)
    ]
    which = ("prompts", "policy", "prompt_id", "step")
    assert steps == [{key: value for key, value in line.items() if key not in which} for line in lines]
    assert [own.totals for own in results.runs] == read(folder / "episodes.jsonl")


def test_sets_are_paired_and_in_the_order_of_the_command(folder):
    results = load_results(folder)
    (policies,) = results.sets().values()
    assert list(policies) == ["autoregressive", "hydra-default", *results.settings["policies"]]
    orders = {tuple(own.run.episode.prompt_id for own in runs) for runs in policies.values()}
    assert len(orders) == 1
    assert len(*orders) == 3


def test_results_without_details_can_be_read(config):
    settings = config()
    compare(settings)
    path = settings.out / "steps.jsonl"
    old = [
        {key: value for key, value in line.items() if key not in ("token_ids", "text", "scores", "parents")}
        for line in read(path)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    details = [detail for own in load_results(settings.out).runs for detail in own.run.details]
    assert {(detail.token_ids, detail.text, len(detail.scores)) for detail in details} == {((), "", 0)}


@pytest.mark.parametrize("name", ["steps.jsonl", "episodes.jsonl"])
def test_a_run_that_was_cut_short(folder, name):
    (folder / "summary.json").unlink()
    whole = load_results(folder)
    last = whole.runs[-1].run.episode.prompt_id
    # Episodes follow their steps to the disk, so the last one may have steps only.
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:-1]) + (lines[-1][:30] if name[0] == "e" else ""))
    if name == "steps.jsonl":
        path = folder / name
        path.write_text(path.read_text()[:-20])
    cut = load_results(folder)
    assert cut.summary is None
    assert [own.label for own in cut.runs] == [own.label for own in whole.runs[:-1]]
    (policies,) = cut.sets().values()
    for runs in policies.values():
        assert [own.run.episode.prompt_id for own in runs] == [
            own.run.episode.prompt_id for own in next(iter(policies.values()))
        ]
        assert len(runs) == 2
        assert all(own.run.episode.prompt_id != last for own in runs)


def test_a_set_that_no_prompt_was_finished_of_is_left_out(folder):
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text(lines[0])
    assert load_results(folder).sets() == {}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("steps.jsonl", lambda text: text.replace('"step": 1', '"step": 2', 1), "line 2: step 2, expected 1"),
        ("steps.jsonl", lambda text: text.replace('"reward"', '"rewards"', 1), "line 1 lacks reward"),
        ("steps.jsonl", lambda text: text.replace('"policy"', '"polity"', 1), "line 1 lacks policy"),
        ("steps.jsonl", lambda text: "7\n" + text, "line 1 is not a JSON object"),
        ("steps.jsonl", lambda text: text.replace('"action": ', '"action": 0.', 1), "action is 0.*not a int"),
        ("steps.jsonl", lambda text: text.replace('"reward": ', '"reward": NaN, "x": ', 1), "(?i)nan"),
        ("steps.jsonl", lambda text: text.replace('"scores": {', '"scores": {"x": "y", ', 1), "scores is "),
        ("steps.jsonl", lambda text: text.replace('"parents": ', '"parents": [1], "x": ', 1), "are no tree"),
        ("steps.jsonl", lambda text: "[" * 100_000 + "\n" + text, "line 1 is not JSON"),
        ("episodes.jsonl", lambda text: "{\n" + text, "line 1 is not JSON"),
        ("episodes.jsonl", lambda text: text.replace('"text"', '"texts"', 1), "line 1 lacks text"),
        ("episodes.jsonl", lambda text: text + text, "it is here twice"),
        ("episodes.jsonl", lambda text: "", "has no episode"),
        ("manifest.json", lambda text: text[:-9], "manifest.json is not JSON"),
        ("manifest.json", lambda text: text.replace("environments", "live"), "eval compare"),
        ("manifest.json", lambda text: text.replace('"policies"', '"rows"'), "eval compare"),
        ("summary.json", lambda text: "[]", "summary.json is not a JSON object"),
        ("summary.json", lambda text: "{", "summary.json is not JSON"),
    ],
)
def test_damage_is_named(folder, name, change, message):
    path = folder / name
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        load_results(folder)


@pytest.mark.parametrize("name", ["steps.jsonl", "episodes.jsonl", "manifest.json"])
def test_a_folder_that_is_none(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"has no {name}.*eval compare"):
        load_results(folder)


def test_results_of_an_earlier_version_can_be_read(folder):
    later = ("accept_seconds", "commit_seconds", "feature_seconds", "deeper")
    path = folder / "steps.jsonl"
    old = [{key: value for key, value in line.items() if key not in later} for line in read(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in old))
    steps = [step for own in load_results(folder).runs for step in own.run.episode.steps]
    assert {tuple(getattr(step, key) for key in later) for step in steps} == {(0, 0, 0, 0)}
    assert [step.seconds for step in steps] == [line["seconds"] for line in old]
