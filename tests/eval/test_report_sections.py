import dataclasses

import numpy as np
import pytest

from eval.interleave import Run
from eval.page import tree_colours
from eval.report_sections import make_section
from eval.stored import StoredRun
from eval.summary import summarise
from eval.watch import StepDetail

MANIFEST = {
    "settings": {"baseline": "hydra-default", "bootstrap_samples": 300, "seed": 0},
    "environments": {"chat": {}},
}


@pytest.fixture
def section(episode):
    """The section of some episodes by policy."""

    def build(episodes, details=None):
        policies = {
            policy: [
                StoredRun("chat", Run(policy, 0, own, details or [StepDetail()] * len(own.steps)), {})
                for own in runs
            ]
            for policy, runs in episodes.items()
        }
        colours = tree_colours(own.run for runs in policies.values() for own in runs)
        return make_section("chat", policies, MANIFEST, colours, (), "auto")

    return build


@pytest.fixture
def episodes(episode):
    return {
        "autoregressive": [
            episode("a", *[(0, 1, 0.1)] * 6, policy_seconds=0.02),
            episode("b", *[(0, 1, 0.2)] * 3, policy_seconds=0.02),
        ],
        "hydra-default": [
            episode("a", (3, 4, 0.2), (3, 2, 0.2), policy_seconds=0.1),
            episode("b", (3, 3, 0.4), policy_seconds=0.1),
        ],
    }


def test_rows_are_those_of_the_comparison(section, episodes):
    own = section(episodes)
    assert own.rows == summarise(episodes, "hydra-default", 300, 0)
    assert own.best.policy == "hydra-default"
    assert own.regret is None


def test_intervals_surround_throughput_and_accept_length(section, episodes):
    own = section(episodes)
    for row, speed, tau in zip(own.rows, own.speeds, own.taus, strict=True):
        assert speed.value == pytest.approx(row.tokens_per_second)
        assert tau.value == pytest.approx(row.tau)
        assert speed.low < speed.value < speed.high
    # Both texts of the first policy have a token a step.
    assert (own.taus[0].low, own.taus[0].high) == pytest.approx((1, 1))


def test_time_is_split_without_a_remainder(section, episodes):
    plain, hydra = section(episodes).splits
    # The fixture's steps draft for a quarter of their time and verify for half of it.
    milliseconds = {"draft": 25, "verify": 50, "rest": 25, "policy": 20}
    assert plain.milliseconds.keys() == milliseconds.keys()
    seconds = 6 * 0.1 + 3 * 0.2
    for phase, share in {"draft": 0.25, "verify": 0.5, "rest": 0.25}.items():
        assert plain.milliseconds[phase] == pytest.approx(1e3 * share * seconds / 9)
    assert plain.milliseconds["policy"] == pytest.approx(20)
    assert hydra.total == pytest.approx(1e3 * (0.8 + 3 * 0.1) / 9)


def test_more_phases_are_shown_when_steps_record_them(section, episodes):
    finer = {
        policy: [
            dataclasses.replace(
                own,
                steps=tuple(dataclasses.replace(s, accept_seconds=0.2 * s.seconds) for s in own.steps),
            )
            for own in runs
        ]
        for policy, runs in episodes.items()
    }
    (plain, _), (before, _) = section(finer).splits, section(episodes).splits
    assert list(plain.milliseconds) == ["draft", "verify", "accept", "rest", "policy"]
    assert plain.milliseconds["accept"] == pytest.approx(0.8 * before.milliseconds["rest"])
    assert plain.total == pytest.approx(before.total)


def test_scores_are_counted_by_accepted_drafts(section, episode):
    details = [StepDetail(scores={"base_top1": score}) for score in (0.1, 0.9)]
    both = {
        "autoregressive": [episode("a", (0, 1, 0.1), (0, 1, 0.1))],
        "hydra-default": [episode("a", (3, 1, 0.1), (3, 7, 0.1))],
    }
    (chart,) = section(both, details).histograms
    assert chart.title == "base_top1"
    # Plain decoding can accept nothing and is left out.
    assert [(bar.group, bar.title[-3:]) for bar in chart.bars] == [(0, ": 1"), (4, ": 1")]
    assert not section(both).histograms


def test_ratios_fit_on_their_axis(section, episodes):
    own = section(episodes)
    places = [own.rho_axis(x) for row in own.rows for x in (row.rho.low, row.rho.value, row.rho.high)]
    assert np.all(np.array(places) <= 120)
    assert np.all(np.array(places) >= 0)
