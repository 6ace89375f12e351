import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from entmtp_env.decoding import SampleRule
from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts
from eval import losslessness as module
from eval.compare import Compare, compare
from eval.losslessness import Losslessness, load_losslessness, losslessness
from eval.losslessness_scores import TextScorer
from eval.report import Report, report
from eval.results import ResultFolder
from eval.stored import load_results
from tests.eval.html_page import Page
from tests.eval.tiny_results import tiny_results


def run(files, out, acceptance, seed=0):
    settings = {key: value for key, value in files.kwargs.items() if key != "prompts"}
    compare(
        Compare(
            policies=("static:tree-4x2",),
            baseline="static:tree-4x2",
            prompts=(files.prompts,),
            num_prompts=3,
            bootstrap_samples=50,
            acceptance=acceptance,
            seed=seed,
            out=out,
            **settings,
        )
    )
    return out


@pytest.fixture(scope="module")
def typical(tiny_files, tmp_path_factory):
    out = tmp_path_factory.mktemp("typical") / "results"
    return run(tiny_files, out, "typical:temperature=2,epsilon=0.01,alpha=0.01")


@pytest.fixture
def folder(typical, tmp_path):
    return shutil.copytree(typical, tmp_path / "results")


@pytest.fixture(scope="module")
def model(tiny_files):
    return AutoModelForCausalLM.from_pretrained(tiny_files.model).eval()


def texts(folder, files):
    """Prompt and token ids by policy and prompt id, from the lines of the file."""
    engine = get_engine(files.model, files.heads, "float32", "cpu")
    prompts = {prompt.prompt_id: engine.encode(prompt) for prompt in load_prompts(files.prompts)}
    found = {}
    for line in map(json.loads, (folder / "steps.jsonl").read_text().splitlines()):
        ids = found.setdefault(line["policy"], {}).setdefault(line["prompt_id"], [])
        ids += line["token_ids"]
    return prompts, found


def test_every_number_is_that_of_transformers(folder, tiny_files, model, capsys):
    (rows,) = losslessness(Losslessness(folder)).values()
    prompts, found = texts(folder, tiny_files)
    nats, margins, same = {}, {}, {}
    for policy, own in found.items():
        nats[policy], margins[policy] = {}, []
        for prompt_id, text in own.items():
            prompt, reference = prompts[prompt_id], found["autoregressive"][prompt_id]
            ids = torch.tensor([prompt + text])
            labels = ids.clone()
            labels[:, : len(prompt)] = -100
            with torch.inference_mode():
                out = model(ids, labels=labels)
            # Its loss is a mean over tokens.
            nats[policy][prompt_id] = float(out.loss), len(text)
            if text != reference:
                at = next(i for i, (a, b) in enumerate(zip(text, reference, strict=False)) if a != b)
                best, second = out.logits[0, len(prompt) + at - 1].topk(2).values.tolist()
                margins[policy].append(best - second)
        same[policy] = len(own) - len(margins[policy])
    assert margins["static:tree-4x2"]
    repeated = {policy: [0, 0] for policy in found}
    for line in map(json.loads, (folder / "episodes.jsonl").read_text().splitlines()):
        words = line["text"].split()
        runs = [words[i : i + 4] for i in range(len(words) - 3)]
        repeated[line["policy"]][0] += sum(run in runs[:i] for i, run in enumerate(runs))
        repeated[line["policy"]][1] += len(runs)
    for row in rows:
        means, lengths = np.array(list(nats[row.policy].values())).T
        assert row.nats == pytest.approx(np.average(means, weights=lengths), abs=1e-5)
        assert row.gap.value == pytest.approx(row.nats - rows[0].nats, abs=1e-6)
        again, runs = repeated[row.policy]
        assert row.repeated == pytest.approx(again / max(runs, 1))
        assert row.repeated_gap.value == pytest.approx(row.repeated - rows[0].repeated)
        assert (row.texts, row.same) == (3, same[row.policy])
        assert sorted(row.margins) == pytest.approx(sorted(margins[row.policy]), abs=1e-5)
    printed = capsys.readouterr().out
    for number in (f"{rows[1].nats:.4f}", f"{rows[1].gap.value:+.4f}", f"{rows[1].repeated:.3f}"):
        assert number in printed
    for gap, digits in ((rows[1].gap, 4), (rows[1].repeated_gap, 3)):
        assert f"[{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]" in printed


def test_a_lossless_rule_loses_nothing(tiny_files, tmp_path):
    folder = shutil.copytree(tiny_results(tiny_files), tmp_path / "results")
    (rows,) = losslessness(Losslessness(folder)).values()
    assert len(rows) > 2
    for row in rows:
        assert (row.gap.value, row.same, row.margins, row.verdict) == (0.0, 3, (), "holds")


def test_sampling_is_scored_with_its_own_noise(tiny_files, tmp_path, model, monkeypatch):
    made = []

    class Watched(TextScorer):
        def __init__(self, backbone, prompt, rule, noise_seed, longest):
            super().__init__(backbone, prompt, rule, noise_seed, longest)
            made.append((prompt, rule, noise_seed))

    monkeypatch.setattr(module, "TextScorer", Watched)
    folder = run(tiny_files, tmp_path / "results", "sample:temperature=0.8", seed=3)
    losslessness(Losslessness(folder))
    (policies,) = load_results(folder).sets().values()
    for (prompt, rule, seed), own in zip(made, policies["autoregressive"], strict=True):
        assert isinstance(rule, SampleRule)
        text = [token for detail in own.run.details for token in detail.token_ids]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1].numpy()
        noise = [gumbel_noise(seed, len(prompt) + i, logits.shape[1]) for i in range(len(text))]
        assert (logits / rule.temperature + noise).argmax(-1).tolist() == text


def test_what_was_scored_is_read_back_and_shown(folder):
    assert load_losslessness(folder) == {}
    assert "Losslessness" not in Page(report(Report(folder)).read_text(encoding="utf-8")).text
    found = losslessness(Losslessness(folder))
    assert load_losslessness(folder) == found
    page = " ".join(Page(report(Report(folder)).read_text(encoding="utf-8")).text.split())
    assert "Losslessness" in page
    for row in next(iter(found.values())):
        assert f"{row.nats:.4f}" in page
        for gap, digits in ((row.gap, 4), (row.repeated_gap, 3)):
            ends = f"[{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"
            assert f"{gap.value:+.{digits}f} {ends}" in page


@pytest.mark.parametrize("name", ["episodes.jsonl", "steps.jsonl"])
def test_other_texts_than_those_that_were_scored(folder, name):
    losslessness(Losslessness(folder))
    path = folder / name
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ValueError, match=r"losslessness.json is of other texts; run .*losslessness"):
        load_losslessness(folder)


@pytest.mark.parametrize("change", [{"sets": 3}, {"sets": {"a": [{"policy": "b"}]}}, {"texts": None}])
def test_a_damaged_file(folder, change):
    losslessness(Losslessness(folder))
    path = folder / "losslessness.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"losslessness.json is (damaged|of other texts)"):
        load_losslessness(folder)


def test_it_goes_with_the_results_that_it_is_of(folder):
    losslessness(Losslessness(folder))
    own = load_results(folder).runs[0]
    with ResultFolder(folder, resume=True) as results:
        assert (folder / "losslessness.json").exists()
        results.add(own.prompts, own.run)
        assert not (folder / "losslessness.json").exists()
    shutil.copy(folder / "manifest.json", folder / "losslessness.json")
    with ResultFolder(folder, overwrite=True):
        assert not (folder / "losslessness.json").exists()


def test_other_weights_are_refused(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for environments in manifest["environments"].values():
        for environment in environments.values():
            environment["model_fingerprint"] = "other"
    path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="was made with other weights"):
        losslessness(Losslessness(folder))


@pytest.fixture
def own_prompts(tiny_files, tmp_path):
    """The tiny files with a prompt set of their own to edit."""
    return dataclasses.replace(
        tiny_files, prompts=str(shutil.copy(tiny_files.prompts, tmp_path / "own.jsonl"))
    )


def edited(path, change):
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def test_an_edited_prompt_is_refused(own_prompts, tmp_path):
    folder = run(own_prompts, tmp_path / "results", "greedy")
    ran = json.loads((folder / "episodes.jsonl").read_text().splitlines()[0])["prompt_id"]
    ids = [prompt.prompt_id for prompt in load_prompts(own_prompts.prompts)]
    edited(
        own_prompts.prompts,
        lambda lines: [
            line | {"prompt": line["prompt"] + "!" * (name == ran)}
            for name, line in zip(ids, lines, strict=True)
        ],
    )
    with pytest.raises(ValueError, match=r"own\.jsonl' have other texts than those that ran; restore"):
        losslessness(Losslessness(folder))


def test_a_prompt_that_is_gone_is_named(own_prompts, tmp_path):
    folder = run(own_prompts, tmp_path / "results", "greedy")
    edited(own_prompts.prompts, lambda lines: [{"id": "another", "prompt": "Why?"}])
    with pytest.raises(ValueError, match=r"has no prompt .* any more"):
        losslessness(Losslessness(folder))


@pytest.mark.parametrize(("acceptance", "refused"), [("sample:temperature=0.8", True), ("greedy", False)])
def test_a_longer_set_draws_other_noise(own_prompts, tmp_path, acceptance, refused):
    folder = run(own_prompts, tmp_path / "results", acceptance)
    edited(own_prompts.prompts, lambda lines: [*lines, {"id": "another", "prompt": "Why?"}])
    if refused:
        with pytest.raises(ValueError, match="has other prompts, or another order"):
            losslessness(Losslessness(folder))
    else:
        losslessness(Losslessness(folder))


def test_prompts_of_an_earlier_version_are_taken_as_they_are(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["prompt_texts"]
    path.write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="does not say what the texts of .* were"):
        losslessness(Losslessness(folder))


def test_texts_without_token_ids_are_refused(config):
    settings = config()
    compare(dataclasses.replace(settings))
    with pytest.raises(ValueError, match=r"steps.jsonl has 0 token ids of \d+ tokens"):
        losslessness(Losslessness(settings.out))
