import dataclasses

from eval.interleave import Run
from eval.page import render_page, trace_data, tree_colours
from eval.watch import StepDetail
from tests.eval.html_page import Page

EVIL = "</script><script>alert('x')</script>&<b>"


def run(episode, policy, *steps, text="", pieces=None):
    details = [StepDetail(text=piece) for piece in pieces or [""] * len(steps)]
    return Run(policy, 0, episode("q", *steps, text=text), details)


def test_trees_have_colours_of_their_own_in_the_order_of_the_bank(episode):
    colours = tree_colours([run(episode, "a", (3, 1, 0.1), (0, 1, 0.1)), run(episode, "b", (2, 1, 0.1))])
    assert list(colours) == ["tree0", "tree2", "tree3"]
    assert len(set(colours.values())) == 3


def test_the_data_has_steps_and_each_text_once(episode):
    one = run(episode, "a", (0, 1, 0.001), (2, 3, 0.5), text="é😀b", pieces=["é", "😀b"])
    two = run(episode, "b@some/where/file.json", (2, 2, 0.25), text="é😀b", pieces=["é😀b"])
    three = run(episode, "c", (0, 1, 0.1), text="other")
    data = trace_data({r.policy: [r] for r in (one, two, three)}, tree_colours([one, two, three]))
    assert [name for name, _ in data["trees"]] == ["tree0", "tree2"]
    (prompt,) = data["prompts"]
    assert prompt["texts"] == ["é😀b", "other"]
    # JavaScript counts the emoji twice.
    assert prompt["runs"] == [
        {"policy": "a", "text": 0, "steps": [[0, 0, 1, 1000], [1, 2, 3, 500000]]},
        {"policy": "b@file.json", "text": 0, "steps": [[1, 1, 4, 250000]]},
        {"policy": "c", "text": 1, "steps": [[0, 0, -1, 100000]]},
    ]


def test_a_tree_that_was_built_is_shown(episode):
    own = run(episode, "a", (0, 1, 0.001), (2, 3, 0.002))
    deeper = dataclasses.replace(own.episode.steps[1], deeper=3)
    episode = dataclasses.replace(own.episode, steps=(own.episode.steps[0], deeper))
    details = [StepDetail(), StepDetail(parents=(0, 0, 1))]
    data = trace_data(
        {"a": [dataclasses.replace(own, episode=episode, details=details)]}, tree_colours([own])
    )
    ((shown,),) = (prompt["runs"] for prompt in data["prompts"])
    assert shown["steps"] == [[0, 0, -1, 1000], [1, 2, -1, 2000, [2, 1, 0], (0, 0, 1)]]


def test_nothing_in_a_text_becomes_markup(episode):
    own = run(episode, EVIL, (0, 1, 0.1), text=EVIL, pieces=[EVIL])
    colours = tree_colours([own])

    class Config:
        model, acceptance, max_new_tokens, seed = EVIL, EVIL, 1, 0

    data = trace_data({EVIL: [own]}, colours)
    page = Page(render_page("trace.html", title=EVIL, config=Config, data=data, colours=colours))
    page.check_self_contained()
    assert page.count("b") == 0
    assert page.count("script") == 2
    assert page.data[0]["prompts"][0]["texts"] == [EVIL]
    assert EVIL in page.text
