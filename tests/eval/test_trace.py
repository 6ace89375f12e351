import dataclasses
import sys

import pytest
import tyro

from eval.trace import Trace, trace
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
