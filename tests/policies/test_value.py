import dataclasses
import itertools
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.replay.costs import load_costs
from policies import make_policy
from policies.network import Network
from policies.value import Value
from tests.policies.test_network import make_network
from tests.recordings import BANK, COSTS, random_recording, saved_settings, seconds

CAPACITY = 100
FEATURES = ("context_fraction", "a", "b")


@pytest.fixture
def env(bare_env):
    env = bare_env(BANK, FEATURES)
    env.capacity, env.feature_set = CAPACITY, SimpleNamespace(probe="none")
    return env


def raised(network, **changes):
    """The same network with outputs that may be tokens."""
    first, last = network.biases
    return dataclasses.replace(network, biases=(first, last + 6), **changes)


@pytest.fixture(scope="module")
def network():
    return raised(make_network(sizes=(3, 8, len(BANK)), clip=9.0), mean=np.zeros(3), scale=np.full(3, 0.3))


@pytest.fixture(scope="module")
def observations():
    rng = np.random.default_rng(1)
    rows = rng.random((60, 3), dtype=np.float32)
    rows[:, 0] = rng.integers(1, CAPACITY, size=60) / CAPACITY
    return rows


def price(observation, costs=seconds):
    context = round(float(observation[0]) * CAPACITY)
    return [costs(tree, context) for tree in BANK]


def test_a_given_rate_weighs_tokens_against_seconds(env, network, observations):
    policy = Value(env, network, costs=COSTS, rate=130)
    expected = [
        int(np.argmax([max(t, 1) - 130 * s for t, s in zip(tokens, price(row), strict=True)]))
        for tokens, row in zip(network(observations), observations, strict=True)
    ]
    assert len(set(expected)) > 1
    actions, state = policy.predict(observations)
    assert actions.tolist() == expected
    assert state is None


def test_by_default_the_rate_follows_the_text(env, network, observations, run):
    emitted = spent = 0.0
    expected = []
    for tokens, row in zip(network(observations).clip(1).tolist(), observations, strict=True):
        costs = price(row)
        fastest = max(range(len(BANK)), key=lambda k: tokens[k] / costs[k])
        rate = (emitted + tokens[fastest]) / (spent + costs[fastest])
        expected.append(max(range(len(BANK)), key=lambda k: tokens[k] - rate * costs[k]))
        emitted, spent = emitted + tokens[expected[-1]], spent + costs[expected[-1]]
    assert len(set(expected)) > 1
    assert run(Value(env, network, costs=COSTS), observations) == expected


@pytest.mark.parametrize("costs", [COSTS, "analytic:base=0.02,node=0.02", "analytic:base=0.05,depth=0.02"])
def test_no_stationary_rule_emits_more_per_second(env, costs, run):
    # Three kinds of places; what each tree emits there is known exactly.
    tokens = np.array([[1, 1.2, 1.3, 1.5], [1, 1.9, 2.2, 1.6], [1, 1.9, 3.6, 2.1]])
    network = Network(
        (np.concatenate([np.zeros((1, 4)), tokens[1:] - tokens[0]]),), (tokens[0],), np.zeros(3), np.ones(3)
    )
    kinds = np.random.default_rng(0).choice(3, p=[0.5, 0.2, 0.3], size=2000)
    rows = np.stack([np.full(2000, 0.5), kinds == 1, kinds == 2], axis=1).astype(np.float32)
    prices = load_costs(costs).at(BANK, np.array([CAPACITY // 2])).seconds[:, 0]

    def rate(actions):
        return tokens[kinds, actions].sum() / prices[actions].sum()

    best = max(rate(np.array(rule)[kinds]) for rule in itertools.product(range(4), repeat=3))
    policy = Value(env, network, costs=costs)
    assert rate(np.array(run(policy, rows))) > 0.998 * best


def test_in_a_replay_it_reads_the_costs_of_the_replay(tmp_path):
    recording = random_recording(np.random.default_rng(0))
    env = gymnasium.make("EntMTP/Replay-v0", **saved_settings(tmp_path, recording))
    features = len(env.unwrapped.feature_names)
    network = raised(make_network(sizes=(features, 8, len(BANK))))
    Value(env, network).save(tmp_path / "value.npz")
    own = make_policy(f"value@{tmp_path}/value.npz", env)
    named = make_policy(f"value:costs={COSTS.replace(',', '|')}@{tmp_path}/value.npz", env)
    dear = make_policy(f"value:costs=analytic:base=0.001|node=9@{tmp_path}/value.npz", env)
    assert make_policy(named.spec, env).options == named.options == {"costs": tuple(COSTS.split(","))}
    rows = np.random.default_rng(0).random((200, features), dtype=np.float32)
    assert own.predict(rows)[0].tolist() == named.predict(rows)[0].tolist()
    assert own.predict(rows)[0].any()
    assert not dear.predict(rows)[0].any()


def test_faults(env, bare_env, network, monkeypatch):
    with pytest.raises(ValueError, match="rate=0 tokens per second must be positive"):
        Value(env, network, costs=COSTS, rate=0)
    with pytest.raises(FileNotFoundError, match=r"no costs 'nowhere\.json'"):
        Value(env, network, costs="nowhere.json")
    with pytest.raises(ValueError, match="reads the feature 'context_fraction'"):
        Value(bare_env(BANK, ("a", "b", "c")), network, costs=COSTS)
    probed = SimpleNamespace(name="here", probe="chain")
    monkeypatch.setattr("policies.prices.load_costs", lambda spec: probed)
    with pytest.raises(ValueError, match=r"'here' were measured with probe='chain', not 'none'"):
        Value(env, network, costs="here")
