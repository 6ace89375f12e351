import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.trees import DraftTree, TopologyBank
from policies.ema_ladder import EmaLadder
from policies.ladder import Ladder
from policies.threshold import Threshold
from tests.fake_env import FakeEnv
from train.candidates import (
    EMA_ALPHAS,
    EMA_MARGINS,
    PAPER_TAUS,
    StaticRuns,
    ema_ladder_options,
    ladder_options,
    threshold_options,
)

SCORES = ("best_path_value", "deep_path_value")


def wide(nodes):
    """One level of siblings."""
    return DraftTree(f"wide-{nodes}", tuple((rank,) for rank in range(nodes)))


BANK = TopologyBank([DraftTree.chain(1), DraftTree.chain(2), wide(2), DraftTree.chain(3), wide(3), wide(5)])


def runs_of(*rates, scores=None):
    values = scores or {name: {score: np.linspace(0, 1, 5) for score in SCORES} for name in BANK.names}
    return StaticRuns(BANK, dict(zip(BANK.names, rates, strict=True)), values)


def test_the_pairs_are_the_best_tree_and_the_best_on_each_side():
    # autoregressive, chain-1, chain-2, wide-2, chain-3, wide-3, wide-5
    runs = runs_of(1, 3, 9, 4, 5, 6, 2)
    assert runs.best.name == "chain-2"
    assert runs.pairs() == [("chain-1", "chain-2"), ("chain-2", "wide-3")]


@pytest.mark.parametrize(
    ("rates", "pair"),
    [((9, 3, 2, 4, 5, 6, 1), ("autoregressive", "wide-3")), ((1, 3, 2, 4, 5, 6, 9), ("wide-3", "wide-5"))],
)
def test_at_either_end_there_is_one_pair(rates, pair):
    assert runs_of(*rates).pairs() == [pair]


@settings(deadline=None)
@given(rates=st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_the_hull_is_what_no_chord_covers(rates):
    runs = runs_of(*rates)
    points = [(len(tree), runs.rates[tree.name]) for tree in BANK]
    hull = [(len(BANK[BANK.index(name)]), runs.rates[name]) for name in runs.hull()]
    top = {n: max(rate for m, rate in points if m == n) for n, _ in points}
    covered = {
        (n, rate)
        for n, rate in top.items()
        for (a, low), (b, high) in itertools.product(top.items(), repeat=2)
        if a < n < b and (high - low) * (n - a) >= (rate - low) * (b - a)
    }
    assert hull == sorted(set(top.items()) - covered)


def test_the_best_of_each_depth():
    assert runs_of(9, 3, 2, 4, 5, 6, 1).best_per_depth() == ("wide-3", "chain-2", "chain-3")


def test_quantiles_pool_the_steps_of_the_trees_and_drop_repeats():
    values = {"chain-1": {"s": np.array([0.0, 1.0])}, "chain-2": {"s": np.array([0.25, 0.5, 0.75])}}
    runs = StaticRuns(BANK, {}, values)
    assert runs.quantiles("s", ["chain-1", "chain-2"], (0.75, 0.25, 0.26, 0.5)) == [0.25, 0.26, 0.5, 0.75]
    assert runs.quantiles("s", ["chain-1"], (0, 0, 1)) == [0.0, 1.0]


def test_threshold_candidates_are_pairs_by_scores_by_quantiles():
    runs = runs_of(1, 3, 9, 4, 5, 6, 2)
    candidates = threshold_options(runs, runs.pairs(), SCORES, (0.25, 0.5))
    expected = itertools.product(runs.pairs(), SCORES, (0.25, 0.5))
    assert candidates == [
        {"small": small, "large": large, "score": score, "on": on} for (small, large), score, on in expected
    ]


def test_the_grid_of_the_paper():
    runs = runs_of(1, 3, 9, 4, 5, 6, 2)
    candidates = threshold_options(runs, [("chain-1", "wide-5")], ("deep_path_value",), (0.5,), PAPER_TAUS)
    assert [options["on"] for options in candidates] == [0.001, 0.005, 0.01, 0.02, 0.05]


def test_all_pairs_of_few_trees_are_smaller_and_larger():
    pairs = runs_of(1, 3, 9, 4, 5, 6, 2).all_pairs()
    size = {tree.name: (len(tree), tree.depth) for tree in BANK}
    assert len(pairs) == len(set(pairs)) == 7 * 6 / 2
    assert all(size[low] <= size[high] for low, high in pairs)


def test_all_pairs_of_many_trees_are_those_of_the_hull():
    bank = TopologyBank([*BANK, wide(6), wide(7), wide(8)])
    rates = dict.fromkeys(bank.names, 1.0) | {"chain-2": 9.0, "chain-3": 8.9, "wide-6": 8.0, "wide-7": 2.0}
    runs = StaticRuns(bank, rates, {})
    assert runs.hull() == ("autoregressive", "chain-2", "chain-3", "wide-6", "wide-8")
    assert runs.all_pairs() == list(itertools.combinations(runs.hull(), 2))


def test_a_ladder_gives_each_tree_as_many_steps():
    rng = np.random.default_rng(0)
    runs = runs_of(9, 3, 2, 4, 5, 6, 1, scores={name: {"s": rng.random(40)} for name in BANK.names})
    hull, per_depth = ladder_options(runs, ("s",))
    assert (hull["trees"], per_depth["trees"]) == (runs.hull(), runs.best_per_depth())
    for options in (hull, per_depth):
        steps = np.concatenate([runs.scores[tree]["s"] for tree in options["trees"]])
        share = np.bincount(np.searchsorted(options["edges"], steps), minlength=len(options["trees"]))
        assert share.tolist() == [40] * len(options["trees"])


def test_a_score_that_cannot_tell_trees_apart_makes_no_ladder():
    constant = {name: {"flat": np.ones(5), "steep": np.linspace(0, 1, 9)} for name in BANK.names}
    runs = runs_of(9, 3, 2, 4, 5, 6, 1, scores=constant)
    assert {options["score"] for options in ladder_options(runs, ("flat", "steep"))} == {"steep"}


@settings(deadline=None)
@given(rates=st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_every_candidate_is_a_policy(rates):
    env, runs = FakeEnv(bank=BANK), runs_of(*rates)
    for policy, candidates in [
        (Threshold, threshold_options(runs, runs.pairs(), SCORES, (0.0, 0.5, 1.0))),
        (Ladder, ladder_options(runs, SCORES)),
        (EmaLadder, ema_ladder_options(runs)),
    ]:
        assert candidates
        specs = [policy(env, **options).spec for options in candidates]
        assert len(set(specs)) == len(specs)


def test_ema_rungs_get_deeper():
    # The hull is wide-5 behind the empty tree, which never accepts a draft that could lift it.
    runs = runs_of(1, 2, 2, 2, 2, 2, 90)
    candidates = ema_ladder_options(runs)
    assert {options["trees"] for options in candidates} == {runs.best_per_depth()}
    assert len(candidates) == len(EMA_ALPHAS) * len(EMA_MARGINS)


def test_a_bank_without_a_choice_has_no_candidates():
    bank = TopologyBank([])
    runs = StaticRuns(bank, {"autoregressive": 1.0}, {"autoregressive": {"s": np.ones(3)}})
    assert threshold_options(runs, runs.all_pairs(), ("s",), (0.5,)) == ladder_options(runs, ("s",)) == []
    assert runs.pairs() == []
    assert ema_ladder_options(runs) == []
