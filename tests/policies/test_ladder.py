import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.trees.bank import TopologyBank
from entmtp_env.trees.tree import DraftTree
from policies import make_policy
from policies.ladder import Ladder

EIGHTHS = st.integers(0, 8).map(lambda n: n / 8)  # exact in float32: scores often sit on an edge


@settings(deadline=None)
@given(scores=st.lists(EIGHTHS, min_size=1), edges=st.lists(EIGHTHS, unique=True, max_size=5).map(sorted))
def test_bins_equal_a_plain_count_of_edges(env, observe, scores, edges):
    trees = env.bank.names[3 : 4 + len(edges)]
    policy = Ladder(env, trees=trees, edges=edges, score="expected_accept")
    actions, _ = policy.predict(observe(expected_accept=scores))
    expected = [trees[sum(1 for edge in edges if score > edge)] for score in scores]
    assert [env.bank[a].name for a in actions] == expected


def test_two_rungs_are_a_threshold_without_hysteresis(env):
    rows = np.random.default_rng(0).random((200, len(env.feature_names)), dtype=np.float32)
    ladder = make_policy("ladder:trees=chain-1|tree-8x4,edges=0.4", env)
    threshold = make_policy("threshold:small=chain-1,large=tree-8x4,on=0.4", env)
    assert np.array_equal(ladder.predict(rows)[0], threshold.predict(rows)[0])


def test_defaults_take_the_leanest_tree_of_each_depth(bare_env):
    wide = DraftTree("wide", ((0,), (1,), (0, 0)))
    bank = TopologyBank([wide, DraftTree.chain(4), DraftTree.chain(2), DraftTree.chain(1)])
    options = Ladder(bare_env(bank)).options
    assert options["trees"] == ("chain-1", "chain-2", "chain-4")
    assert options["edges"] == pytest.approx((1 / 3, 2 / 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("trees=chain-1|chain-2|chain-3,edges=0.4", "3 trees .* needs 2 edges .* got 1"),
        ("trees=chain-1|chain-2|chain-3,edges=0.4|0.4", "increase strictly"),
        ("trees=chain-1|chain-2,edges=a", "option edges='a' is not a number"),
        ("trees=chain-1||chain-2", "write trees="),
        ("trees=chain-1|oak", "no tree 'oak'"),
        ("score=luck", "feature 'luck'"),
    ],
)
def test_wrong_options_are_named(env, options, message):
    with pytest.raises(ValueError, match=message):
        make_policy(f"ladder:{options}", env)


def test_a_bank_without_drafts_has_no_ladder(bare_env):
    with pytest.raises(ValueError, match="no tree that drafts"):
        Ladder(bare_env(TopologyBank([])))
