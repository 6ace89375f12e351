import json

import pytest

from eval.interleave import Run
from eval.results import FILES, ResultFolder


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_episodes_are_on_disk_as_they_come(tmp_path, episode):
    with ResultFolder(tmp_path / "a" / "b") as folder:
        first = episode("q1", (0, 1, 0.5), (3, 2, 0.25), policy_seconds=0.125, prefill=2.0, text="é\u2028x")
        folder.add("chat", Run("random", 7, first))
        steps, (whole,) = (lines(folder.path / name) for name in ("steps.jsonl", "episodes.jsonl"))
    assert [(step["step"], step["action"], step["tokens"], step["seconds"]) for step in steps] == [
        (0, 0, 1, 0.5),
        (1, 3, 2, 0.25),
    ]
    assert all(s["prompts"] == "chat" and s["policy"] == "random" and s["prompt_id"] == "q1" for s in steps)
    assert {key: steps[1][key] for key in vars(first.steps[1])} == vars(first.steps[1])
    assert whole == {
        "prompts": "chat",
        "policy": "random",
        "prompt_id": "q1",
        "seed": 7,
        "steps": 2,
        "tokens": 3,
        "seconds": 0.75,
        "policy_seconds": 0.25,
        "prefill_seconds": 2.0,
        "finish_reason": "length",
        "text": "é\u2028x",
    }


@pytest.mark.parametrize("name", FILES)
def test_results_are_never_overwritten_unasked(tmp_path, name):
    (tmp_path / name).write_text("precious")
    with pytest.raises(FileExistsError, match=rf"{name}.*--overwrite"):
        ResultFolder(tmp_path)
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_resumed_that_is_no_comparison(tmp_path, name):
    manifest = {"settings": {"recordings": ["chat"]}}
    line = {"prompts": "chat", "policy": "random"}
    (tmp_path / name).write_text(json.dumps(manifest if name == "manifest.json" else line) + "\n")
    before = (tmp_path / name).read_text()
    with pytest.raises((FileExistsError, FileNotFoundError), match=r"other results|has no manifest"):
        ResultFolder(tmp_path, resume=True)
    assert (tmp_path / name).read_text() == before


def test_overwriting_leaves_nothing_of_the_old_results(tmp_path):
    for name in (*FILES, "notes.txt"):
        (tmp_path / name).write_text("old")
    with ResultFolder(tmp_path, overwrite=True):
        pass
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert left == {"steps.jsonl": "", "episodes.jsonl": "", "notes.txt": "old"}


def test_nothing_is_removed_before_the_run_begins(tmp_path):
    (tmp_path / "summary.json").write_text("old")
    ResultFolder(tmp_path, overwrite=True)
    assert (tmp_path / "summary.json").read_text() == "old"


def test_json_has_no_nan(tmp_path):
    with ResultFolder(tmp_path) as folder:
        folder.write_json("summary.json", {"τ": 1.5})
        with pytest.raises(ValueError, match="JSON compliant"):
            folder.write_json("summary.json", {"τ": float("nan")})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"τ": 1.5}
