import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.trees import DraftTree, TopologyBank
from policies.ema_ladder import EmaLadder
from policies.ladder import Ladder
from policies.threshold import Threshold
from tests.fake_env import FakeEnv
from train.candidates import PAPER_TAUS, StaticRuns
from train.hill_climb import Moves, climb

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
BANK = TopologyBank(
    [DraftTree.chain(d) for d in (1, 2, 3)] + [DraftTree("wide", ((0,), (1,), (0, 0), (1, 0)))]
)
ENV = FakeEnv(bank=BANK)


def runs():
    rng = np.random.default_rng(0)
    scores = {name: {"deep_path_value": rng.random(50)} for name in BANK.names}
    return StaticRuns(BANK, {name: float(k + 1) for k, name in enumerate(BANK.names)}, scores)


def trial(place, rate):
    return SimpleNamespace(policy=SimpleNamespace(spec=str(place), place=place), rate=rate)


@given(
    top=st.tuples(st.integers(0, 6), st.integers(0, 6)), start=st.tuples(st.integers(0, 6), st.integers(0, 6))
)
def test_the_climb_ends_at_the_top_of_a_single_hill_and_tries_nothing_twice(top, start):
    def rate(place):
        return -sum(abs(a - b) for a, b in zip(place, top, strict=True))

    def neighbours(policy):
        x, y = policy.place
        around = [(x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1), (x, y), (x + 1, y)]
        return [trial(place, 0).policy for place in around]

    tried = [start]

    def run(policies):
        tried.extend(policy.place for policy in policies)
        return [trial(policy.place, rate(policy.place)) for policy in policies]

    first = trial(start, rate(start))
    known = {first.policy.spec: first}
    assert climb(first, neighbours, run, known).policy.place == top
    assert len(tried) == len(set(tried)) == len(known)


def test_the_climb_stays_where_no_neighbour_is_faster():
    start = trial("here", 3.0)
    known = {"here": start, "there": trial("there", 3.0)}
    assert climb(start, lambda _: [known["there"].policy], lambda policies: [], known) is start
    assert climb(start, lambda _: [], lambda policies: [], known) is start


def specs(policy, options):
    """The moves are settings that the policy takes."""
    return {policy(ENV, **own).spec: own for own in options}


START = Threshold(ENV, small="chain-1", large="chain-3", score="deep_path_value", on=0.5, off=0.4).options


def test_a_threshold_moves_with_and_without_its_hysteresis_and_to_other_trees():
    moves = specs(Threshold, Moves(runs(), SHARES).threshold(dict(START))).values()
    grid = runs().quantiles("deep_path_value", ("chain-1", "chain-3"), SHARES)
    same_trees = {
        (own["on"], own["off"]) for own in moves if (own["small"], own["large"]) == ("chain-1", "chain-3")
    }
    expected = {(tau, tau) for tau in grid} | {(tau, min(tau, 0.4)) for tau in grid}
    assert same_trees == expected | {(0.5, tau) for tau in grid if tau <= 0.5} | {(0.5, 0.4)}
    pairs = {(own["small"], own["large"]) for own in moves}
    assert pairs == {pair for pair in runs().all_pairs() if pair[0] == "chain-1" or pair[1] == "chain-3"}


def test_on_the_grid_of_the_paper_a_threshold_stays():
    options = dict(START) | {"on": 0.01, "off": 0.01}
    moves = list(Moves(runs(), SHARES, PAPER_TAUS).threshold(options))
    assert {own["on"] for own in moves} == {own["off"] for own in moves} == set(PAPER_TAUS)


def test_a_ladder_moves_one_edge_changes_one_tree_or_loses_one_rung():
    trees, edges = ("chain-1", "chain-3", "wide"), (0.3, 0.6)
    options = {"trees": trees, "edges": edges, "score": "deep_path_value"}
    moves = specs(Ladder, Moves(runs(), SHARES).ladder(options)).values()
    grid = runs().quantiles("deep_path_value", trees, SHARES)
    shorter = {(own["trees"], own["edges"]) for own in moves if len(own["trees"]) == 2}
    assert shorter == {
        (("chain-3", "wide"), (0.6,)),
        (("chain-1", "wide"), (0.3,)),
        (("chain-1", "wide"), (0.6,)),
        (("chain-1", "chain-3"), (0.3,)),
    }
    moved = {own["edges"] for own in moves if own["trees"] == trees} - {edges}
    assert moved == {(edge, 0.6) for edge in grid if edge < 0.6} | {
        (0.3, edge) for edge in grid if edge > 0.3
    }
    others = {own["trees"] for own in moves if len(own["trees"]) == 3} - {trees}
    assert others == {
        ("autoregressive", "chain-3", "wide"),
        ("chain-2", "chain-3", "wide"),
        ("chain-1", "chain-2", "wide"),
    }
    two = {"trees": ("chain-1", "wide"), "edges": (0.3,), "score": "deep_path_value"}
    assert all(len(own["trees"]) == 2 for own in Moves(runs(), SHARES).ladder(two))


@pytest.mark.parametrize("edges", [None, (0.35, 1.9), (0.94, 1.0)])
def test_every_move_of_an_ema_ladder_can_be_crossed(edges):
    start = EmaLadder(ENV, trees=("chain-1", "chain-2", "chain-3"), edges=edges, margin=0.05)
    moves = specs(EmaLadder, Moves(runs(), SHARES).ema_ladder(dict(start.options)))
    assert len(moves) > 20
    changed = [{key for key in start.options if own[key] != start.options[key]} for own in moves.values()]
    assert all(len(keys) <= 1 or keys == {"trees", "edges"} for keys in changed)
    assert set(itertools.chain(*changed)) == set(start.options)
