import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.trees.bank import TopologyBank
from entmtp_env.trees.tree import DraftTree
from policies import make_policy
from policies.threshold import Threshold

GRID = st.sampled_from([0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0])  # exact in float32: ties are common


@settings(deadline=None)
@given(scores=st.lists(GRID, min_size=1, max_size=40), bounds=st.tuples(GRID, GRID))
def test_hysteresis_equals_a_plain_loop(env, observe, run, scores, bounds):
    off, on = sorted(bounds)
    policy = Threshold(env, small="chain-2", large="tree-15x4", score="deep_path_value", on=on, off=off)
    tree, expected = "chain-2", []
    for score in scores:
        if tree == "chain-2" and score > on:
            tree = "tree-15x4"
        elif tree == "tree-15x4" and score <= off:
            tree = "chain-2"
        expected.append(tree)
    assert [env.bank[a].name for a in run(policy, observe(deep_path_value=scores))] == expected


def test_off_defaults_to_on_and_the_score_to_the_published_one(env, observe, run):
    policy = make_policy("threshold:on=0.25", env)
    assert policy.options["off"] == 0.25
    large = [
        env.bank[a].name == policy.options["large"]
        for a in run(policy, observe(best_path_value=[0.25, 0.3, 0.25]))
    ]
    assert large == [False, True, False]


def test_default_trees_follow_the_bank_and_not_names(bare_env):
    flat = DraftTree("flat", ((0,), (1,), (2,)))
    big = DraftTree("big", (*DraftTree.chain(4).nodes, (1,)))
    bank = TopologyBank([DraftTree.chain(5), big, DraftTree.chain(4), DraftTree.chain(2), flat])
    options = Threshold(bare_env(bank)).options
    assert (options["small"], options["large"]) == ("chain-2", "big")


def test_off_above_on_is_refused(env):
    with pytest.raises(ValueError, match=r"off=0\.6 must not exceed on=0\.5"):
        Threshold(env, on=0.5, off=0.6)


@pytest.mark.parametrize(
    ("options", "message"),
    [("on=high", "option on='high'"), ("small=oak", "no tree 'oak'"), ("score=luck", "feature 'luck'")],
)
def test_wrong_options_are_named(env, options, message):
    with pytest.raises(ValueError, match=message):
        make_policy(f"threshold:{options}", env)
