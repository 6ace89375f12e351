import dataclasses

import pytest

from eval.interleave import Run
from eval.trace_text import trace_text
from eval.watch import StepDetail

COLOURS = {"tree0": "#000001", "tree2": "#000002"}


@pytest.fixture
def run(episode):
    own = episode("q", (0, 1, 0.1), (2, 5, 0.2), (2, 1, 0.1), policy_seconds=0.1, text="I am [bold]")
    return Run("ladder", 0, own, [StepDetail(text=piece) for piece in ("I", " am ", "[bold]")])


def spans(text):
    return [(text.plain[span.start : span.end], span.style) for span in text.spans]


def test_every_step_has_the_colour_of_its_tree(run):
    text = trace_text(run, COLOURS)
    pieces = [(piece, style.color.name, bool(style.underline)) for piece, style in spans(text)[4:7]]
    assert pieces == [
        ("I", "#000001", False),
        (" am ", "#000002", True),
        ("[bold]", "#000002", False),
    ]


def test_accept_lengths_are_blocks(run):
    assert spans(trace_text(run, COLOURS))[1:4] == [("▁", "#000001"), ("█", "#000002"), ("▁", "#000002")]


def test_the_numbers(run):
    lines = trace_text(run, COLOURS).plain.splitlines()
    assert lines[0] == "ladder: 7 tokens in 3 steps, τ = 2.33, 10.0 tok/s"
    assert lines[-1].split() == ["■", "tree2", "2", "steps", "■", "tree0", "1", "steps"]


def test_the_nodes_of_trees_that_were_built(run):
    steps = [dataclasses.replace(s, deeper=n) for s, n in zip(run.episode.steps, (0, 3, 2), strict=True)]
    details = [StepDetail(text="a", parents=parents) for parents in ((), (0, 0, 1, 1, 2), (0,))]
    episode = dataclasses.replace(run.episode, steps=tuple(steps))
    text = trace_text(dataclasses.replace(run, episode=episode, details=details), COLOURS)
    assert text.plain.splitlines()[2] == "0 2+3+0 1+0 "
    assert [own for own in spans(text) if "+" in own[0]] == [("2+3+0", "#000002"), ("1+0", "#000002")]


def test_a_text_without_pieces_is_plain(run):
    plain = trace_text(Run("ladder", 0, run.episode, [StepDetail()] * 3), COLOURS)
    assert "I am [bold]" in plain.plain
    assert not any("I am" in piece for piece, _ in spans(plain))
