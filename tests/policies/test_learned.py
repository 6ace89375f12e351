import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from policies.learned import Learned
from policies.network import Network

LOGITS = np.log([0.5, 0.3, 0.2], dtype=np.float32)


@pytest.fixture
def env(bare_env):
    return bare_env(TopologyBank([DraftTree.chain(1), DraftTree.chain(2)]), features=("x",))


def constant(outputs):
    return Network((np.zeros((1, 3)),), (outputs,), np.zeros(1), np.ones(1))


def test_the_greatest_output_is_taken(env):
    # Outputs x, 0 and -x: the first tree for positive x, the last for negative.
    network = Network((np.array([[1.0, 0.0, -1.0]]),), (np.zeros(3),), np.zeros(1), np.ones(1))
    policy = Learned(env, network)
    actions, state = policy.predict(np.array([[2.0], [-2.0], [0.0]], np.float32))
    assert actions.tolist() == [0, 2, 0]
    assert state is None
    assert policy.predict(np.array([-1.0], np.float32))[0].shape == ()


def test_draws_have_the_softmax_of_the_logits_as_frequencies(env):
    actions, _ = Learned(env, constant(LOGITS + 7)).predict(np.zeros((20_000, 1)), deterministic=False)
    frequencies = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(frequencies, [0.5, 0.3, 0.2], atol=0.02)
    assert Learned(env, constant(LOGITS)).predict(np.zeros(1), deterministic=False)[0].shape == ()


def test_values_are_not_drawn_from(env):
    actions, _ = Learned(env, constant(LOGITS), kind="q").predict(np.zeros((500, 1)), deterministic=False)
    assert set(actions.tolist()) == {0}


def test_an_unknown_kind_is_refused(env):
    with pytest.raises(ValueError, match="kind='v' is none of logits, q"):
        Learned(env, constant(LOGITS), kind="v")
