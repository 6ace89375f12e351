from types import SimpleNamespace

import pytest

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import DEEPER, Stages
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank
from train.timed_steps import TimedStep, steps_of_bank, steps_of_stages

STAGES = Stages("s", DraftShape((1, 2, 2), (3, 2, 2)), (0, 1, 2, 5, 9))


def test_a_bank_is_a_step_for_each_tree():
    bank = TopologyBank([DraftTree.chain(2), DraftTree("wide", ((0,), (1,)))])
    assert [(step.tree, step.actions) for step in steps_of_bank(bank)] == [
        (tree, (k,)) for k, tree in enumerate(bank)
    ]


def test_stages_are_a_step_for_each_depth_and_size_of_a_tree():
    steps = steps_of_stages(STAGES)
    # 3, 7 and 11 nodes are drafted; a tree of depth d has at least d.
    expected = [(0, 0), (1, 1), (1, 2), (2, 2), (2, 5), (3, 5), (3, 9)]
    assert [(step.tree.depth, len(step.tree)) for step in steps] == expected
    for (depth, nodes), step in zip(expected, steps, strict=True):
        assert step.actions == (DEEPER,) * depth + (1 + STAGES.budgets.index(nodes),)
        mask = STAGES.masks
        assert all(mask[d, action] for d, action in enumerate(step.actions[:-1]))
        assert mask[depth, step.actions[-1]]
    assert steps[0].tree == AUTOREGRESSIVE
    assert len({step.tree.fingerprint for step in steps}) == len({step.tree.name for step in steps}) == 7


class Env:
    def __init__(self, *infos):
        self.infos, self.actions, self.decoder = list(infos), [], SimpleNamespace(length=9)

    def step(self, action):
        self.actions.append(action)
        return None, 0.0, False, False, self.infos.pop(0)


def info(seconds, features, draft, verify, reason=""):
    return {
        "seconds": seconds,
        "feature_seconds": features,
        "draft_seconds": draft,
        "verify_seconds": verify,
        "finish_reason": reason,
    }


def test_the_decisions_of_a_step_add_up_without_observations():
    env = Env(info(3, 1, 2, 0), info(4, 1, 3, 0), info(20, 2, 0, 15))
    assert TimedStep(DraftTree.chain(2), (0, 0, 3)).run(env) == (23, 5, 15)
    assert env.actions == [0, 0, 3]


def test_a_text_that_ends_is_an_error():
    with pytest.raises(RuntimeError, match="'chain-1' behind 9 tokens: error: out of memory"):
        TimedStep(DraftTree.chain(1), (0, 2)).run(Env(info(1, 0, 1, 0, "error: out of memory")))
