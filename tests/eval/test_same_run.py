import dataclasses

import pytest

from eval.interleave import Run
from eval.same_run import first_difference, told
from eval.stored import load_results
from eval.watch import StepDetail
from tests.eval.tiny_results import tiny_results


def test_only_what_is_recorded_is_compared(tiny_files):
    own = load_results(tiny_results(tiny_files)).runs[0].run
    bare = dataclasses.replace(own, details=[StepDetail()] * len(own.details))
    assert first_difference(bare, own, 0.0, told([bare])) == ""
    assert first_difference(own, bare, 0.0, told([own])).startswith("step 0: token_ids")


def test_what_any_step_tells_is_compared_of_all(episode):
    whole = Run("p", 0, episode("q", (1, 2, 0.1)), [StepDetail((1, 2), "ab", {"base_top1": 0.5})])
    bare = Run("p", 0, episode("r", (1, 2, 0.1)), [StepDetail()])
    assert told([bare]) == []
    assert told([bare, whole]) == ["token_ids", "text", "base_top1"]
    again = dataclasses.replace(bare, details=whole.details)
    assert first_difference(bare, again, 0.0, told([bare])) == ""
    assert first_difference(bare, again, 0.0, told([bare, whole])).startswith("step 0: token_ids ()")
    assert first_difference(bare, again, 0.0, ["base_top1"]) == "step 0: base_top1 nan recorded, 0.5 live"


def test_a_text_that_ends_early_differs(episode):
    whole = Run("p", 0, episode("q", (1, 2, 0.1), (1, 1, 0.1)), [StepDetail()] * 2)
    short = Run("p", 0, episode("q", (1, 2, 0.1)), [StepDetail()])
    assert first_difference(whole, short, 0.0, []) == "2 steps recorded, 1 live"


@pytest.mark.parametrize(("tolerance", "differs"), [(0.0, True), (0.1, False)])
def test_scores_may_be_off_by_the_tolerance(episode, tolerance, differs):
    one, other = (
        Run("p", 0, episode("q", (1, 2, 0.1)), [StepDetail(scores={"base_top1": score})])
        for score in (0.5, 0.55)
    )
    assert bool(first_difference(one, other, tolerance, ["base_top1"])) == differs
