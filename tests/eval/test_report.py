import dataclasses
import json
import re
import shutil
import sys

import pytest
import tyro

from entmtp_env.replay.recording import Recording
from eval.compare import compare
from eval.report import Report, report
from eval.results import ResultFolder
from eval.stored import load_results
from tests.eval.browser import needs_browser, print_page, run_page
from tests.eval.html_page import Page
from tests.eval.tiny_results import staged_results, tiny_results
from tests.recordings import COSTS, record_tiny


@pytest.fixture
def folder(tiny_files, tmp_path):
    return shutil.copytree(tiny_results(tiny_files), tmp_path / "results")


@pytest.fixture(scope="module")
def recording(tiny_files, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "tiny.npz"
    record_tiny(tiny_files, cap=24).save(path)
    return str(path)


def test_the_page_stands_alone_and_says_it_all(folder, recording, capsys):
    out = report(Report(folder, recordings=(recording,), costs=COSTS))
    assert out == folder / "report.html"
    assert f"report: {out}" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    page.check_self_contained()
    summary = json.loads((folder / "summary.json").read_text())
    ((name, rows),) = summary["sets"].items()
    text = " ".join(page.text.split())
    assert f"{name}: 3 prompts" in text
    for row in rows:
        assert row["policy"] in text
        low, high = row["versus_baseline"]["low"], row["versus_baseline"]["high"]
        assert f"{row['versus_baseline']['value']:.2f} [{low:.2f}, {high:.2f}]" in text
        assert f"{row['tau']:.2f}" in text
        for name, digits in (
            ("versus_baseline_with_prefill", 3),
            ("interquartile_ratio", 3),
            ("improvement", 2),
        ):
            value, low, high = (f"{row[name][end]:.{digits}f}" for end in ("value", "low", "high"))
            assert f"{value} [{low}, {high}]" in text
    for heading in (
        "Speed against accept length",
        "Where the time goes",
        "Regret against the oracle",
        "Scores before a step",
        "Accept length along the text",
        "Manifest",
    ):
        assert heading in text
    for score in ("base_top1", "base_entropy", "best_path_value", "deep_path_value", "expected_accept"):
        assert score in text
    manifest = json.loads((folder / "manifest.json").read_text())
    assert json.dumps(manifest["environments"], indent=2).splitlines()[2].strip() in text
    assert page.count("circle", **{"class": "dot"}) == 2 * len(rows)


def test_regret_says_on_how_many_texts(folder, recording, tmp_path):
    original = Recording.load(recording)
    pages = []
    for name, changed in (("all", []), ("none", slice(None))):
        tokens = original.tokens.copy()
        tokens[original.offsets[:-1][changed]] += 1
        path = tmp_path / f"{name}.npz"
        dataclasses.replace(original, tokens=tokens).save(path)
        page = Page(report(Report(folder, (str(path),), COSTS)).read_text(encoding="utf-8"))
        pages.append(" ".join(page.text.split()))
    assert "on 3 of the 3 recorded texts" in pages[0]
    assert "best single tree" in pages[0]
    assert "None of the 3 recorded texts came out as recorded" in pages[1]
    assert "best single tree" not in pages[1]


def test_the_script_gets_every_step(folder):
    (data,) = Page(report(Report(folder)).read_text(encoding="utf-8")).data
    (policies,) = load_results(folder).sets().values()
    for k, (policy, runs) in enumerate(policies.items()):
        for prompt, own in zip(data["prompts"], runs, strict=True):
            shown = prompt["runs"][k]
            assert shown["policy"] == policy
            assert prompt["texts"][shown["text"]] == own.run.episode.text
            assert [(data["trees"][tree][0], accepted) for tree, accepted, _, _ in shown["steps"]] == [
                (step.tree, step.accept_length) for step in own.run.episode.steps
            ]


def test_staged_policies_are_reported_like_any_other(tiny_files, tmp_path):
    folder = staged_results(tiny_files)
    page = Page(report(Report(folder, out=tmp_path / "page.html")).read_text(encoding="utf-8"))
    assert all(policy in page.text for policy in load_results(folder).settings["policies"])
    (data,) = page.data
    names = [name for name, _ in data["trees"]]
    for prompt in data["prompts"]:
        assert [{len(step) for step in run["steps"]} for run in prompt["runs"][:2]] == [{4}, {4}]
        for tree, _, _, _, sizes, parents in prompt["runs"][2]["steps"]:
            assert names[tree] == "verify-12"
            assert (len(sizes), sum(sizes), len(parents)) == (4, 12, 12)


def test_what_is_not_recorded_is_left_out(config, tmp_path):
    settings = config()
    compare(settings)
    page = Page(report(Report(settings.out, out=tmp_path / "page.html")).read_text(encoding="utf-8"))
    assert "Regret" not in page.text
    assert "cut short" not in page.text
    # The fake decoder tells no tokens, so that texts are not cut into steps.
    assert {step[2] for run in page.data[0]["prompts"][0]["runs"] for step in run["steps"]} == {-1}


def test_a_run_that_was_cut_short(folder):
    (folder / "summary.json").unlink()
    path = folder / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    text = Page(report(Report(folder)).read_text(encoding="utf-8")).text
    assert "The run was cut short" in text
    assert "2 prompts" in text


def test_a_report_goes_with_the_results_that_it_shows(folder):
    page = report(Report(folder))
    with ResultFolder(folder, overwrite=True):
        assert not page.exists()


def test_nothing_to_report(folder):
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match="no prompt was finished by all policies"):
        report(Report(folder))


def test_a_recording_of_other_prompts(folder):
    with pytest.raises(ValueError, match=r"chat: none of the comparison's prompts is recorded"):
        report(Report(folder, recordings=("chat",)))


def test_the_folder_is_positional(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--recordings", "chat", "math"])
    assert tyro.cli(Report) == Report(tmp_path, ("chat", "math"))


@needs_browser
@pytest.mark.parametrize(
    "options", [(), ("--blink-settings=preferredColorScheme=0", "--window-size=400,800")]
)
def test_in_a_browser(folder, tmp_path, options):
    out = report(Report(folder))
    document = run_page(out, *options)
    (policies,) = load_results(folder).sets().values()
    first = [runs[0].run for runs in policies.values()]
    drawn = re.findall(r'<rect x="[^>]*data-run="(\d+)" data-step="(\d+)"', document)
    assert len(drawn) == sum(len(run.episode.steps) for run in first)
    spans = re.findall(r'<span style="--tree: #[0-9a-f]{6}" data-run="3" data-step="\d+">', document)
    assert len(spans) == len(first[3].episode.steps)
    assert document.count('class="name" aria-pressed="true"') == 1
    print_page(out, tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


@needs_browser
def test_what_the_cursor_and_a_click_show(folder, tmp_path):
    page = report(Report(folder)).read_text(encoding="utf-8")
    actions = """<script>
    document.querySelector("select").value = 1;
    document.querySelector("select").dispatchEvent(new Event("change"));
    document.querySelectorAll(".strips button")[2].click();
    document.querySelector('rect[data-run="2"][data-step="3"]')
        .dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: 9, clientY: 9}));
    </script></body>"""
    changed = tmp_path / "changed.html"
    changed.write_text(page.replace("</body>", actions), encoding="utf-8")
    document = run_page(changed)
    (policies,) = load_results(folder).sets().values()
    run = policies["static:tree-4x2"][1].run
    step = run.episode.steps[3]
    (tip,) = re.findall(r'<div id="tip"[^>]*>([^<]*)</div>', document)
    assert tip.startswith(f"step 3: tree-4x2\n{step.accept_length} accepted, {step.tokens} tokens, ")
    assert json.dumps(run.details[3].text) in tip.splitlines()[2]
    marked = re.findall(r'data-run="2" data-step="3" class="on"(?: [^>]*)?>([^<]*)<', document)
    assert marked == ["", run.details[3].text]
    assert document.count('<span style="--tree') == len(run.episode.steps)
