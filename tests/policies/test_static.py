import numpy as np
import pytest

from entmtp_env.trees.bank import TopologyBank
from entmtp_env.trees.tree import DraftTree
from policies import make_policy, run_episode
from policies.static import Autoregressive, HydraDefault, Static


@pytest.mark.parametrize(
    ("spec", "tree"),
    [
        ("static:tree-8x4", "tree-8x4"),
        ("static:tree=chain-3", "chain-3"),
        ("autoregressive", "autoregressive"),
        ("hydra-default", "hydra-default"),
    ],
)
def test_one_tree_for_the_whole_text(env, spec, tree):
    episode = run_episode(env, make_policy(spec, env), "p1", seed=0)
    assert {step.tree for step in episode.steps} == {tree}


def test_the_tree_is_found_by_name_in_any_order(bare_env):
    bank = TopologyBank([DraftTree.chain(2), DraftTree("plain"), DraftTree.chain(1)])
    env = bare_env(bank, features=())
    nothing = np.zeros(0, np.float32)
    assert Static(env, "chain-1").predict(nothing)[0] == 2
    assert Autoregressive(env).predict(nothing)[0] == 1
    with pytest.raises(ValueError, match="hydra-default"):
        HydraDefault(env)


def test_a_missing_or_unknown_tree_is_refused_with_the_names(env):
    with pytest.raises(ValueError, match=r"static:<tree>.*chain-1, chain-2"):
        make_policy("static", env)
    with pytest.raises(ValueError, match=r"no tree 'oak'.*chain-1"):
        make_policy("static:oak", env)
