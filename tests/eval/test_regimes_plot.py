import dataclasses

import numpy as np
import pytest

from eval.regimes_analysis import CLASSIFIED, TaskRegimes
from eval.regimes_plot import regimes_figure
from eval.regimes_statistics import Estimate
from tests.eval.test_plot import overlaps

FAMILIES = {"base_entropy": "entropy", "accept_last": "history", "last_tree": "position"}


@pytest.fixture
def tasks():
    rng = np.random.default_rng(0)

    def drawn(low, high):
        value = rng.uniform(low, high)
        return Estimate(value, value - 0.1, value + 0.05)

    return {
        name: TaskRegimes(
            generations=3,
            steps=9,
            tokens_per_step=2.0,
            none_accepted=0.5,
            families=FAMILIES,
            correlations={"base_entropy": drawn(-1, 1), "accept_last": drawn(-1, 1), "last_tree": None},
            aurocs={family: drawn(0.4, 0.8) for family in CLASSIFIED},
            within=dict.fromkeys(CLASSIFIED),
            lead=None,
            approximate=False,
        )
        for name in ("chat", "math", "humaneval:evaluation")
    }


def points(container):
    data, _, (bars,) = container
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    return data.get_xdata().tolist(), data.get_ydata().tolist(), ends


def test_it_shows_every_estimate_with_its_interval(tasks):
    correlation, classifier = regimes_figure(tasks).axes
    assert [label.get_text() for label in correlation.get_yticklabels()] == [
        "accept_last",
        "base_entropy",
        "last_tree",
    ]
    for container, own in zip(correlation.containers, tasks.values(), strict=True):
        x, y, ends = points(container)
        wanted = [own.correlations["accept_last"], own.correlations["base_entropy"]]
        assert x == pytest.approx([r.value for r in wanted])
        assert [round(value) for value in y] == [0, 1]
        assert np.array(ends) == pytest.approx(np.array([[r.low, r.high] for r in wanted]))
    for container, own in zip(classifier.containers, tasks.values(), strict=True):
        assert points(container)[0] == pytest.approx([own.aurocs[family].value for family in CLASSIFIED])


def test_the_first_feature_is_at_the_top_and_no_text_overlaps(tasks):
    figure = regimes_figure(tasks)
    for axes in figure.axes:
        bottom, top = axes.get_ylim()
        assert bottom > top
    assert overlaps(figure) == ([], [])


def test_a_task_of_which_nothing_is_defined_is_drawn_as_nothing(tasks):
    nothing = dataclasses.replace(
        tasks["chat"], correlations=dict.fromkeys(FAMILIES), aurocs=dict.fromkeys(CLASSIFIED)
    )
    correlation, _ = regimes_figure(tasks | {"chat": nothing}).axes
    assert points(correlation.containers[0])[0] == []


def test_a_value_outside_its_interval_is_still_drawn(tasks):
    odd = dataclasses.replace(tasks["chat"], aurocs=dict.fromkeys(CLASSIFIED, Estimate(0.7, 0.5, 0.6)))
    _, classifier = regimes_figure({"chat": odd}).axes
    assert points(classifier.containers[0])[2][0] == pytest.approx([0.5, 0.7])
