import json
import math

import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from policies import make_policy
from policies.ucb import Ucb

BANK = TopologyBank([DraftTree.chain(depth) for depth in (1, 2, 3)])
OBSERVATION = np.zeros(1, np.float32)


@pytest.fixture
def env(bare_env):
    env = bare_env(BANK, features=("base_top1",))
    env.last_step = 0, 0.0
    return env


def test_each_tree_is_tried_once_and_then_the_highest_bound(env):
    """Step by step against the formula of Auer et al. (2002)."""
    policy, state, rng = Ucb(env, alpha=2), None, np.random.default_rng(0)
    steps = [[] for _ in BANK]
    for turn in range(200):
        action, state = policy.predict(OBSERVATION, state)
        if turn < len(BANK):
            assert action == turn
        else:
            paid = [step for of_tree in steps for step in of_tree]
            rho = sum(t for t, _ in paid) / sum(s for _, s in paid)
            bounds = [
                sum(t - rho * s for t, s in of_tree) / len(of_tree)
                + 2 * math.sqrt(2 * math.log(turn) / len(of_tree))
                for of_tree in steps
            ]
            assert action == np.argmax(bounds)
        env.last_step = int(rng.integers(1, 5)), float(rng.uniform(0.5, 1))
        steps[action].append(env.last_step)
    assert min(map(len, steps)) > 5


def test_in_lock_step_the_trees_are_shared_out_first(env):
    env.last_step = np.zeros(6), np.zeros(6)
    observations = np.zeros((6, 1), np.float32)
    policy = Ucb(env)
    actions, state = policy.predict(observations)
    assert actions.tolist() == [0, 1, 2, 3, 0, 1]
    env.last_step = np.array([1, 1, 1, 4, 1, 1]), np.ones(6)
    assert policy.predict(observations, state)[0].tolist() == [3] * 6


def test_frozen_it_takes_the_best_mean(env):
    moments = [[[10, 5.0]], [[30, 10.0]], [[8, 4.0]], [[3, 3.0]]]
    policy = Ucb(env, learn=False, learned={"moments": moments, "steps": [5, 10, 1, 3]})
    rho = 51 / 22
    payoffs = [(10 - 5 * rho) / 5, (30 - 10 * rho) / 10, (8 - 4 * rho) / 1, (3 - 3 * rho) / 3]
    assert policy.predict(OBSERVATION)[0] == np.argmax(payoffs) == 1


def test_wrong_options_are_named(env, tmp_path):
    with pytest.raises(ValueError, match=r"alpha=-1\.0 must be >= 0"):
        make_policy("ucb:alpha=-1", env)
    make_policy("ucb", env).save(tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    document["options"]["learned"]["steps"][0] = -1
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match="steps must be >= 0"):
        make_policy(f"ucb@{tmp_path}/p.json", env)
