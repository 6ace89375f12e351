import json
from statistics import NormalDist

import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from policies import make_policy
from policies.bandit import Bandit
from tests.policies.learning import ALL, NOTHING, play, rate, replay_of

BANK = TopologyBank([DraftTree.chain(1), DraftTree.chain(2)])


@pytest.fixture(scope="module")
def two_states(tmp_path_factory):
    """``base_top1`` tells whether the chain of 3 or plain decoding is best; no tree is best in both cases."""
    return replay_of(
        tmp_path_factory.mktemp("states"), NOTHING, ALL, costs="analytic:base=0.02,depth=0.01,node=0.0001"
    )


def test_context_beats_the_best_static_tree(two_states):
    def late_rate(spec):
        return rate(play(two_states, make_policy(spec, two_states), rounds=3)[20:])

    names = two_states.unwrapped.bank.names
    best = max(late_rate(f"static:{tree}") for tree in names)
    contextual, plain, oracle = map(late_rate, ("bandit", "ucb", "oracle"))
    assert plain < 1.02 * best
    assert contextual > 1.15 * max(best, plain)
    assert contextual <= oracle


@pytest.fixture
def fed(bare_env):
    """A bandit that was paid for random steps in two environments at once, with these steps."""

    def feed(steps, **options):
        env = bare_env(BANK, features=("base_top1", "base_entropy", "accept_last"))
        env.last_step = np.zeros(2), np.zeros(2)
        rng, policy, state, seen = np.random.default_rng(5), Bandit(env, **options), None, []
        for _ in range(steps):
            observations = rng.random((2, 3), dtype=np.float32)
            actions, state = policy.predict(observations, state)
            env.last_step = rng.integers(1, 4, 2), rng.random(2)
            seen.extend(zip(actions, observations, *env.last_step, strict=True))
        policy.predict(observations, state)
        return policy, seen

    return feed


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_updates_amount_to_the_ridge_regression_of_all_payoffs(fed, bare_env, ridge):
    policy, seen = fed(400, alpha=3, ridge=ridge, features="accept_last|base_top1")
    rho = sum(tokens for *_, tokens, _ in seen) / sum(seconds for *_, seconds in seen)
    assert policy.throughput == pytest.approx(rho)
    probes = np.random.default_rng(6).random((50, 3), dtype=np.float32)
    means = []
    for tree in range(len(BANK)):
        x = np.array([[1, o[2], o[0]] for action, o, *_ in seen if action == tree], dtype=float)
        y = np.array([t - rho * s for action, _, t, s in seen if action == tree])
        assert len(x) > 20
        # The ridge as pseudo-observations of 0, solved by QR.
        weights = np.linalg.lstsq(np.vstack([x, np.sqrt(ridge) * np.eye(3)]), np.append(y, np.zeros(3)))[0]
        expected = np.linalg.inv(ridge * np.eye(3) + x.T @ x)
        np.testing.assert_allclose(policy.learned["inverse"][tree], expected, rtol=1e-9)
        means.append(np.column_stack([np.ones(50), probes[:, 2], probes[:, 0]]) @ weights)
    learned = {key: array.tolist() for key, array in policy.learned.items()}
    env = bare_env(BANK, features=policy.feature_names)
    frozen = Bandit(env, **policy.options | {"learn": False}, learned=learned)
    assert frozen.predict(probes)[0].tolist() == np.argmax(means, axis=0).tolist()
    assert len(set(np.argmax(means, axis=0))) > 1


def test_draws_have_the_deviation_of_the_model(bare_env):
    """Of two trees with payoffs N(m, v) and N(0, w) the first wins with probability Φ(m / √(v + w))."""
    env = bare_env(BANK, features=("base_top1",))
    env.last_step = np.zeros(4000), np.zeros(4000)
    inverse = [[[0.5, 0.1], [0.1, 0.2]], [[1.0, 0.0], [0.0, 2.0]], [[1e-12, 0], [0, 1e-12]]]
    moments = np.zeros((3, 2, 2))
    moments[0, :, 0], moments[2, 0, 0] = [0.4, 0.4], -1e15
    policy = Bandit(env, alpha=0.8, learned={"inverse": inverse, "moments": moments.tolist()})
    x = np.array([1, 0.5])
    assert policy.throughput == 0
    mean, v, w = x @ inverse[0] @ [0.4, 0.4], x @ inverse[0] @ x, x @ inverse[1] @ x
    actions, _ = policy.predict(np.full((4000, 1), 0.5, np.float32))
    expected = NormalDist().cdf(mean / (0.8 * np.sqrt(v + w)))
    assert np.mean(actions == 0) == pytest.approx(expected, abs=0.03)
    assert 0.55 < expected < 0.9
    assert set(actions) == {0, 1}


def test_another_seed_draws_otherwise(two_states):
    actions = [
        [
            step.action
            for steps in play(two_states, make_policy(f"bandit:seed={seed}", two_states))
            for step in steps
        ]
        for seed in (0, 1)
    ]
    assert actions[0] != actions[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("alpha=-1", "alpha=-1.0 must be >= 0"),
        ("ridge=0", "ridge=0.0 > 0"),
        ("features=base_top1|nope", "reads the feature 'nope'"),
        ("features=3", "features=3 is not a list of names"),
        ("seed=-1", "seed=-1 must be a whole number"),
    ],
)
def test_wrong_options_are_named(two_states, options, message):
    with pytest.raises(ValueError, match=message):
        make_policy(f"bandit:{options}", two_states)


def test_an_inverse_that_is_none_is_refused(two_states, tmp_path):
    path = tmp_path / "p.json"
    make_policy("bandit:features=base_top1", two_states).save(path)
    document = json.loads(path.read_text())
    document["options"]["learned"]["inverse"][1] = [[1, 0], [0, -1]]
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="inverse must be positive definite"):
        make_policy(f"bandit@{path}", two_states)
