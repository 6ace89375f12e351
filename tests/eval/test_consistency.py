import dataclasses
import json
import shutil

import pytest

from eval.compare import compare
from eval.consistency import inconsistencies
from eval.stored import load_results
from tests.eval.tiny_results import staged_results, tiny_results


@pytest.fixture
def folder(tiny_files, tmp_path):
    return shutil.copytree(tiny_results(tiny_files), tmp_path / "results")


def test_an_untouched_comparison_is_consistent(folder):
    assert inconsistencies(load_results(folder)) == []


def test_so_is_one_of_staged_policies(tiny_files):
    assert inconsistencies(load_results(staged_results(tiny_files))) == []


def test_and_one_whose_summary_is_of_an_earlier_version(folder):
    path = folder / "summary.json"
    summary = json.loads(path.read_text())
    for row in (row for rows in summary["sets"].values() for row in rows):
        for name in ("versus_baseline_with_prefill", "interquartile_ratio", "improvement"):
            del row[name]
    path.write_text(json.dumps(summary))
    assert inconsistencies(load_results(folder)) == []


def test_so_is_one_of_another_environment(config):
    settings = config()
    compare(settings)
    assert inconsistencies(load_results(settings.out)) == []


def test_and_one_that_was_cut_short(folder):
    (folder / "summary.json").unlink()
    path = folder / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert inconsistencies(load_results(folder)) == []


def leaves(document, path=()):
    """Paths of all numbers and strings of a JSON document."""
    if isinstance(document, dict | list):
        items = document.items() if isinstance(document, dict) else enumerate(document)
        return [leaf for key, value in items for leaf in leaves(value, (*path, key))]
    return [path] if document is not None else []


def change(document, path):
    *parents, last = path
    for key in parents:
        document = document[key]
    value = document[last]
    document[last] = value + "x" if isinstance(value, str) else value + 1


def check_every_change(folder, name, line, ignored):
    path = folder / name
    original = path.read_text()
    lines = original.splitlines(keepends=True) if line is not None else [original]
    place = line or 0
    tried = 0
    for leaf in leaves(json.loads(lines[place])):
        if leaf[0] in ignored:
            continue
        document = json.loads(lines[place])
        change(document, leaf)
        path.write_text("".join([*lines[:place], json.dumps(document) + "\n", *lines[place + 1 :]]))
        try:
            found = inconsistencies(load_results(folder))
        except ValueError:
            found = ["damaged"]
        assert found, leaf
        tried += 1
    path.write_text(original)
    return tried


def test_every_changed_number_of_a_step_is_found(folder):
    lines = list(map(json.loads, (folder / "steps.jsonl").read_text().splitlines()))
    reads, blind = ([own["policy"] for own in lines].index(name) for name in ("ladder", "autoregressive"))
    # Tokens, scores and how deep was drafted are what live decoding checks.
    ignored = {"token_ids", "scores", "deeper"}
    assert check_every_change(folder, "steps.jsonl", reads, ignored) >= 13
    # The clock of rewards counts observations that are in no column of a policy that reads none.
    assert check_every_change(folder, "steps.jsonl", blind, ignored | {"reward"}) >= 12


def test_no_text_is_faster_by_its_rewards_than_by_its_seconds(folder):
    rewrite(folder, "steps.jsonl", lambda line: {"reward": 9 * line["reward"]})
    problems = inconsistencies(load_results(folder))
    assert sum("the rewards add up to" in problem for problem in problems) == 12


def test_every_changed_number_of_an_episode_is_found(folder):
    # Why a text ended is what live decoding checks.
    assert check_every_change(folder, "episodes.jsonl", 4, {"finish_reason"}) >= 9


def test_every_changed_number_of_the_summary_is_found(folder):
    assert check_every_change(folder, "summary.json", None, set()) > 60


@pytest.mark.parametrize("sets", [[], {}, None, 3])
def test_a_summary_without_its_sets_is_said(folder, sets):
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sets": sets}))
    (problem, *_) = inconsistencies(load_results(folder))
    assert problem.startswith("summary.json, sets")


def rewrite(folder, name, change):
    path = folder / name
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | change(line)) + "\n" for line in lines))


TIMES = [f"{part}seconds" for part in ("", "policy_", "draft_", "verify_", "accept_", "commit_", "feature_")]


@pytest.mark.parametrize("name", TIMES)
def test_no_time_is_negative(folder, name):
    """The totals follow, so that only the sign gives it away."""
    rewrite(folder, "steps.jsonl", lambda line: {name: -line[name]})
    if name in ("seconds", "policy_seconds"):
        rewrite(folder, "episodes.jsonl", lambda line: {name: -line[name]})
    problems = inconsistencies(load_results(folder))
    assert sum(f"has {name} = -" in problem for problem in problems) == len(problems) or name == "seconds"
    assert any(f"has {name} = -" in problem and "a time is at least 0" in problem for problem in problems)


def test_times_of_nothing_are_said(folder):
    for name in ("steps.jsonl", "episodes.jsonl"):
        rewrite(folder, name, lambda line: {key: 0.0 for key in line if key.endswith("seconds")})
    problems = inconsistencies(load_results(folder))
    assert any("it took 0.0 seconds" in problem for problem in problems)


def test_no_step_is_without_a_token(folder):
    rewrite(folder, "steps.jsonl", lambda line: {"tokens": 0, "accept_length": -1, "token_ids": []})
    rewrite(folder, "episodes.jsonl", lambda line: {"tokens": 0})
    assert any("0 tokens with -1 accepted" in problem for problem in inconsistencies(load_results(folder)))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("episodes.jsonl", '"seed": 0', '"seed": 9', "the seed is 9 in episodes.jsonl, 0 in the manifest"),
        ("manifest.json", '"t', '"no-t', "the manifest has no such prompt"),
    ],
)
def test_what_is_wrong_is_said(folder, name, old, new, message):
    path = folder / name
    path.write_text(path.read_text().replace(old, new))
    problems = inconsistencies(load_results(folder))
    assert any(message in problem and "autoregressive on " in problem for problem in problems)


def test_missing_episodes_of_a_finished_run(folder):
    results = load_results(folder)
    (problem, *_) = inconsistencies(dataclasses.replace(results, runs=results.runs[:-1]))
    assert "lacks episodes" in problem
    assert "3 prompts" in problem
