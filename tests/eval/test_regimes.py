import dataclasses
import json

import numpy as np
import pytest

from eval.regimes import Regimes, regimes
from tests.recordings import random_recording

TYPICAL = "typical:temperature=0.7,epsilon=0.09,alpha=0.3"


@pytest.fixture
def save(tmp_path):
    def build(name, seed=0, **manifest):
        recording = random_recording(np.random.default_rng(seed), texts=8, depth=4, longest=60, cap=60)
        path = tmp_path / f"{name}.npz"
        dataclasses.replace(recording, manifest=recording.manifest | manifest).save(path)
        return str(path)

    return build


@pytest.fixture
def config(save, tmp_path):
    base = Regimes(tasks=(save("chat"),), folds=3, bootstrap_samples=50, out=tmp_path / "results")
    return lambda **changes: dataclasses.replace(base, **changes)


def test_tables_sentences_and_files(config, save, capsys):
    tasks = (save("chat"), save("other", seed=1, approximate=True))
    settings = config(tasks=(*tasks, tasks[0]))
    found = regimes(settings)
    assert tuple(found) == tasks
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines()[:-1])) <= 100
    text = " ".join(out.split())
    assert text.count("(approximate)") == 2
    for part in ("accept_ema_16", "AUROC history", "history leads, as on ShareGPT", "between 0.55 and 0.70"):
        assert part in text
    assert {path.name for path in settings.out.iterdir()} == {
        "steps.jsonl",
        "summary.json",
        "manifest.json",
        "plot.png",
    }
    summary = json.loads((settings.out / "summary.json").read_text())
    assert summary["tasks"] == json.loads(
        json.dumps({task: dataclasses.asdict(own) for task, own in found.items()})
    )
    assert all(" ".join(sentence.split()) in text for sentence in summary["verdicts"])
    steps = [json.loads(line) for line in (settings.out / "steps.jsonl").read_text().splitlines()]
    for task, own in found.items():
        mine = [step for step in steps if step["task"] == task]
        assert len(mine) == own.steps
        assert np.mean([step["accept_length"] == 0 for step in mine]) == pytest.approx(own.none_accepted)
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert [env["approximate"] for env in manifest["environments"].values()] == [False, True]
    assert manifest["settings"]["folds"] == 3


def test_live_decoding_with_typical_acceptance(tiny_files, tmp_path):
    live = {key: value for key, value in tiny_files.kwargs.items() if key != "prompts"}
    settings = Regimes(
        tasks=(tiny_files.prompts,),
        source="live",
        num_prompts=5,
        tree="tree-4x2",
        folds=3,
        bootstrap_samples=20,
        out=tmp_path / "results",
        **live,
    )
    (found,) = regimes(settings).values()
    assert found.generations == 5
    assert not found.approximate
    manifest = json.loads((settings.out / "manifest.json").read_text())
    assert [env["acceptance"] for env in manifest["environments"].values()] == [TYPICAL]
    steps = [json.loads(line) for line in (settings.out / "steps.jsonl").read_text().splitlines()]
    assert len({step["prompt_id"] for step in steps}) == 5


def test_fewer_texts_shorter_ones_and_another_tree(config):
    (whole,) = regimes(config()).values()
    (part,) = regimes(config(num_prompts=5, max_new_tokens=30, tree="chain-1", overwrite=True)).values()
    assert (whole.generations, part.generations) == (8, 5)
    assert part.steps < whole.steps
    assert part.tokens_per_step < 2


def test_results_are_not_overwritten(config):
    regimes(config())
    with pytest.raises(FileExistsError, match="--overwrite"):
        regimes(config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folds": 2}, "folds=2"),
        ({"folds": 9}, "has 8 texts for folds=9; draw more prompts"),
        ({"seed": -1}, "seed=-1"),
        ({"bootstrap_samples": 0}, "bootstrap_samples=0"),
        ({"num_prompts": -1}, "num_prompts=-1"),
        ({"tasks": ()}, "no task"),
        ({"tree": "nosuch"}, "no tree 'nosuch'"),
        ({"tree": "autoregressive"}, "'autoregressive' drafts nothing"),
        ({"max_new_tokens": 61}, "max_new_tokens=61 must be 1 to 60"),
        ({"source": "live", "tasks": ("nosuch",)}, "unknown prompt set 'nosuch'"),
        ({"source": "live", "tasks": ("chat",), "acceptance": "nosuch"}, "nosuch"),
    ],
)
def test_a_mistake_leaves_nothing_behind(config, changes, message):
    settings = config(**changes)
    with pytest.raises(ValueError, match=message):
        regimes(settings)
    assert not settings.out.exists()
