"""docs/RESULT_FILES.md says what is in the files."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from eval.compare import compare
from eval.gap import Gap
from eval.head_scores import SetScores
from eval.interleave import Run
from eval.losslessness_scores import Losses
from eval.regimes_analysis import TaskRegimes
from eval.replay import Replay, replay
from eval.replay_table import ReplayRow
from eval.results import ResultFolder
from eval.statistics import Ratio
from eval.stored import load_results
from eval.summary import PolicySummary
from eval.watch import StepDetail
from policies import StepRecord
from tests.recordings import random_recording

GUIDE = (Path(__file__).parents[2] / "docs" / "RESULT_FILES.md").read_text(encoding="utf-8")


def fields(kind):
    return [field.name for field in dataclasses.fields(kind)]


def rows(heading, first):
    """Cells of the table whose first column has a name, under a heading."""
    section = re.split(rf"^##+ {re.escape(heading)}$", GUIDE, flags=re.MULTILINE)[1]
    table = section.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table]


def names(heading, first):
    return [row[0].strip("`") for row in rows(heading, first)]


def files_of(command):
    (cell,) = (row[1] for row in rows("Which command writes what", "command") if f"`{command}`" in row[0])
    return set(re.findall(r"`([\w.]+\.\w+)`", cell))


def keys_of(command):
    table = rows("`manifest.json`", "key")
    return {row[0].strip("`") for row in table if {"all", command} & set(row[1].split(", "))}


@pytest.mark.parametrize(
    ("heading", "first", "kind"),
    [
        ("`summary.json`", "field of a policy", PolicySummary),
        ("`summary.json`", "field of a ratio", Ratio),
        ("`summary.json`", "field of a row", ReplayRow),
        ("`summary.json`", "field of a gap", Gap),
        ("`summary.json`", "field of a task", TaskRegimes),
        ("`losslessness.json`", "field of a loss", Losses),
        ("`heads.json`", "field of a set", SetScores),
    ],
)
def test_every_field_is_described(heading, first, kind):
    assert names(heading, first) == fields(kind)


def test_every_column_is_described(tmp_path, episode):
    with ResultFolder(tmp_path) as folder:
        folder.add("chat", Run("random", 7, episode("q1", (0, 1, 0.5))))
    step, whole = (json.loads((tmp_path / name).read_text()) for name in ("steps.jsonl", "episodes.jsonl"))
    assert names("`steps.jsonl`", "column") == list(step)
    assert list(step) == ["prompts", "policy", "prompt_id", "step", *fields(StepRecord), *fields(StepDetail)]
    assert names("`episodes.jsonl`", "column") == list(whole)


def test_a_comparison_writes_the_files_and_the_keys_that_are_described(config):
    settings = config()
    compare(settings)
    assert {path.name for path in settings.out.iterdir()} == files_of("eval compare")
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert keys_of("compare") - {"resumed"} == manifest.keys()


def test_a_replay_writes_the_files_and_the_keys_that_are_described(tmp_path):
    recording = random_recording(np.random.default_rng(0), texts=2, depth=4, longest=20, cap=20)
    recording.save(tmp_path / "r.npz")
    out = tmp_path / "results"
    replay(
        Replay(
            recordings=(str(tmp_path / "r.npz"),),
            policies=(),
            costs="analytic:base=1",
            bootstrap_samples=10,
            out=out,
        )
    )
    assert {path.name for path in out.iterdir()} == files_of("eval replay")
    assert keys_of("replay") == json.loads((out / "manifest.json").read_text()).keys()


def test_the_lines_that_read_results_give_what_the_summary_says(config, prompt_file):
    pytest.importorskip("pandas")
    prompts = Path(prompt_file())
    prompts.write_text(prompts.read_text().replace('"q', '"00'))
    settings = config()
    compare(settings)
    (code,) = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    found = {}
    exec(code.replace("runs/comparison", str(settings.out)), found)
    (summaries,) = json.loads((settings.out / "summary.json").read_text())["sets"].values()
    stored = load_results(settings.out)
    ((name, policies),) = stored.sets().items()
    assert len(found["rates"]) == len(summaries) == len(policies)
    for row in summaries:
        assert found["rates"][name, row["policy"]] == pytest.approx(row["tokens_per_second"])
        for own in policies[row["policy"]]:
            ran = own.run.episode
            assert found["paired"].loc[(name, ran.prompt_id), row["policy"]] == pytest.approx(
                ran.tokens / (ran.seconds + ran.policy_seconds)
            )
    assert set(found["steps"]["prompt_id"]) == {f"00{i}" for i in range(6)}
