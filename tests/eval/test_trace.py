import dataclasses
import re
import sys
from collections import Counter

import pytest
import tyro

from eval.trace import Trace, trace
from eval.watch import nodes_per_depth
from tests.eval.browser import needs_browser, run_page
from tests.eval.html_page import Page


@pytest.fixture
def config(tiny_files, tmp_path):
    settings = {key: value for key, value in tiny_files.kwargs.items() if key != "prompts"}
    base = Trace("w1 w2 w3", policies=("ladder", "hydra-default"), out=tmp_path / "trace.html", **settings)
    return lambda **changes: dataclasses.replace(base, **changes)


def test_the_text_in_the_terminal_and_on_a_page(config, capsys):
    runs = trace(config())
    out = capsys.readouterr().out
    for policy, run in runs.items():
        assert f"{policy}: {run.episode.tokens} tokens in {len(run.episode.steps)} steps" in out
        assert run.episode.text in out
        assert "".join(detail.text for detail in run.details) == run.episode.text
    assert f"page: {config().out}" in out
    page = Page(config().out.read_text(encoding="utf-8"))
    page.check_self_contained()
    assert page.count("h1") == 1
    assert "w1 w2 w3" in page.text
    ((prompt),) = page.data[0]["prompts"]
    assert [own["policy"] for own in prompt["runs"]] == ["ladder", "hydra-default"]
    for own, run in zip(prompt["runs"], runs.values(), strict=True):
        assert sum(step[2] for step in own["steps"]) == len(run.episode.text)


STAGED = "eagle2:nodes=12"


def test_staged_policies_beside_others(config, capsys):
    runs = trace(config(policies=("hydra-default", STAGED, "eagle2-cost-aware")))
    texts = {run.episode.text for run in runs.values()}
    assert len(texts) == 1
    sizes = [
        nodes_per_depth(*own) for own in zip(runs[STAGED].episode.steps, runs[STAGED].details, strict=True)
    ]
    assert {len(own) for own in sizes} == {4}
    assert {sum(own) for own in sizes} == {12}
    out = capsys.readouterr().out
    assert " ".join("+".join(map(str, own)) for own in sizes) in out
    (data,) = Page(config().out.read_text(encoding="utf-8")).data
    ((bank, staged, _),) = (prompt["runs"] for prompt in data["prompts"])
    assert {len(step) for step in bank["steps"]} == {4}
    assert [step[4] for step in staged["steps"]] == sizes


def test_a_prompt_of_a_set(config, tiny_files, capsys):
    runs = trace(config(prompt="t2", prompts=tiny_files.prompts, policies=("autoregressive",), out=None))
    assert runs["autoregressive"].episode.prompt_id == "t2"
    assert "page:" not in capsys.readouterr().out


def test_the_prompt_is_what_is_answered(config, tiny_files):
    """The words of the set's prompt, passed as text, get the same reply."""
    words = " ".join(f"w{(14 + j) % 19}" for j in range(3))
    by_text = trace(config(prompt=words, policies=("autoregressive",)))
    by_id = trace(config(prompt="t2", prompts=tiny_files.prompts, policies=("autoregressive",)))
    assert by_text["autoregressive"].episode.text == by_id["autoregressive"].episode.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": ()}, "no policy"),
        ({"policies": ("nosuch",)}, "nosuch"),
        ({"prompt": ""}, "prompt"),
    ],
)
def test_mistakes(config, changes, message):
    with pytest.raises(ValueError, match=message):
        trace(config(**changes))


def test_an_unknown_prompt_of_a_set(config, tiny_files):
    with pytest.raises(ValueError, match="t99"):
        trace(config(prompt="t99", prompts=tiny_files.prompts))


def test_the_prompt_is_positional(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trace", "Why?", "--policies", "random", "ladder"])
    assert tyro.cli(Trace) == Trace("Why?", policies=("random", "ladder"))


@needs_browser
def test_in_a_browser(config):
    runs = trace(config())
    document = run_page(config().out)
    steps = {policy: len(run.episode.steps) for policy, run in runs.items()}
    assert document.count("<rect ") == sum(steps.values())
    assert document.count('<span style="--tree') == steps["hydra-default"]


@needs_browser
def test_the_tree_that_was_built_is_under_the_cursor(config, tmp_path):
    run = trace(config(policies=(STAGED,)))[STAGED]
    move = """<script>document.querySelector('rect[data-step="2"]')
        .dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: 9, clientY: 9}));
        </script></body>"""
    changed = tmp_path / "changed.html"
    changed.write_text(config().out.read_text(encoding="utf-8").replace("</body>", move), encoding="utf-8")
    (tip,) = re.findall(r'<div id="tip".*?</svg></div>', run_page(changed), re.DOTALL)
    sizes = nodes_per_depth(run.episode.steps[2], run.details[2])
    assert f">step 2: verify-12 of {' + '.join(map(str, sizes))} nodes\n" in tip
    assert (tip.count("<circle"), tip.count("<line")) == (13, 12)
    # The dots of a depth are on one line, and none is on another.
    dots = re.findall(r'<circle cx="([\d.]+)" cy="(\d+)"', tip)
    assert len(set(dots)) == 13
    assert Counter(int(y) for _, y in dots) == Counter({0: 1} | {d: n for d, n in enumerate(sizes, 1) if n})
