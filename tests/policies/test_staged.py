import dataclasses

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.decoding.stages import DEEPER
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.staged_costs import staged_costs, staged_prices
from policies import PolicyFile, run_episode
from policies.staged import Eagle2, Eagle2CostAware, StagedThreshold
from tests.recordings import COSTS, seconds
from tests.staged import STAGES, measured_costs, staged_settings

DEPTH, CAPACITY = STAGES.depth, 2048


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    settings = staged_settings(tmp_path_factory.mktemp("staged"), texts=6, longest=30, cap=30)
    return gymnasium.make("EntMTP/StagedReplay-v0", **settings)


@dataclasses.dataclass
class Size:
    nodes: int
    depth: int

    def __len__(self):
        return self.nodes


def price(nodes, context):
    """Seconds of verifying, by the formula of the costs."""
    return seconds(Size(nodes, 0), context)


def observe(env, stage, context=100, **values):
    row = np.zeros(len(env.unwrapped.feature_names), dtype=np.float32)
    values |= {"stage": stage / DEPTH, "context_fraction": context / CAPACITY}
    for name, value in values.items():
        row[env.unwrapped.feature_names.index(name)] = value
    return row


def sums(rng, stage):
    """Values of the budgets after that many depths: concave in the number of nodes."""
    nodes = [0, 3, 9, 15][stage]
    best = -np.sort(-rng.random(nodes) * rng.random())
    return {f"budget_{n}_value": float(best[:n].sum()) for n in STAGES.budgets[1:]}


def decide(policy, observation, state=None):
    action, state = policy.predict(observation, state=state, episode_start=np.array([state is None]))
    return int(action), state


def test_what_costs_something_is_asked_for_only_where_it_decides(env):
    asked = {
        first: StagedThreshold(env, thresholds=[first, 0.3, 0.2]).reads for first in (0.0, 0.4, 1.0, 2.0)
    }
    assert asked == {
        0.0: "position",
        0.4: "base,position",
        1.0: "base,position",
        2.0: "position",
    }
    for first, drafts in ((0.0, True), (2.0, False)):
        policy = StagedThreshold(env, thresholds=[first, 0.3, 0.2])
        for top1 in (0.0, 1.0):
            observation = observe(env, 0, base_top1=top1)
            assert (decide(policy, observation)[0] == DEEPER) == drafts
            assert (policy.predict(observation[None])[0][0] == DEEPER) == drafts


def test_each_depth_has_a_threshold_of_its_own(env):
    policy = StagedThreshold(env, thresholds="0.5|0.3|0.2")
    for stage, feature, bound in (
        (0, "base_top1", 0.5),
        (1, "depth_1_value_1", 0.3),
        (2, "depth_2_value_1", 0.2),
    ):
        for score in (bound - 0.01, bound + 0.01):
            action, _ = decide(policy, observe(env, stage, **{feature: score}))
            assert (action == DEEPER) == (score > bound)
    assert decide(policy, observe(env, 3, depth_3_value_1=1, depth_2_value_1=1))[0] != DEEPER


def test_with_a_rate_the_number_of_nodes_is_what_pays(env):
    rng, rate = np.random.default_rng(0), 60.0
    policy = StagedThreshold(env, thresholds="2|2|2", costs=COSTS, rate=rate)
    seen = set()
    for _ in range(100):
        stage, context = int(rng.integers(4)), int(rng.integers(1, 1500))
        values = sums(rng, stage)
        gains = {
            n: 1 + values.get(f"budget_{n}_value", 0) - rate * price(n, context)
            for n in STAGES.budgets
            if n <= [0, 3, 9, 15][stage]
        }
        best = max(gains, key=gains.get)
        action, state = decide(policy, observe(env, stage, context, **values))
        assert (STAGES.budgets[action - 1], state) == (best, None)
        seen.add(best)
    assert len(seen) > 3


@pytest.mark.parametrize("measured", [False, True])
def test_by_default_the_rate_follows_the_text(env, measured, tmp_path):
    rng, context = np.random.default_rng(1), 50
    costs = measured_costs(tmp_path) if measured else COSTS
    policy = StagedThreshold(env, thresholds="0|0.5|0.5", costs=costs)
    prices = staged_costs(staged_prices(load_costs(costs)), STAGES, np.array([context]))
    verify = dict(zip(STAGES.budgets, prices.verify_seconds[:, 0].tolist(), strict=True))
    emitted = spent = 0.0
    state = None
    for _ in range(60):
        stop = int(rng.integers(1, 4))
        for stage in range(stop + 1):
            value = {"depth_1_value_1": 0.9 * (stop > 1), "depth_2_value_1": 0.9 * (stop > 2)}
            values = sums(rng, stage)
            action, state = decide(policy, observe(env, stage, context, **value, **values), state)
            assert (action == DEEPER) == (stage < stop)
        drafting = prices.draft_seconds[:stop, 0].sum()
        options = {
            n: 1 + values.get(f"budget_{n}_value", 0) for n in STAGES.budgets if n <= [0, 3, 9, 15][stop]
        }
        rate = max((emitted + t) / (spent + drafting + verify[n]) for n, t in options.items())
        best = max(options, key=lambda n: options[n] - rate * verify[n])
        assert STAGES.budgets[action - 1] == best
        emitted, spent = emitted + options[best], spent + drafting + verify[best]


def test_a_batch_is_decided_like_each_alone(env):
    rng = np.random.default_rng(2)
    policy = StagedThreshold(env, thresholds=[0.2, 0.3, 0.4])
    rows = [
        observe(env, stage, 40, base_top1=rng.random(), depth_1_value_1=rng.random(), **sums(rng, stage))
        for stage in rng.integers(0, 4, size=50).tolist()
    ]
    state = (rng.random(50) * 50, rng.random(50))
    actions, after = policy.predict(np.stack(rows), state=state)
    for i, row in enumerate(rows):
        alone, kept = policy.predict(row, state=tuple(part[i : i + 1] for part in state))
        assert alone == actions[i]
        np.testing.assert_allclose([part[0] for part in kept], [part[i] for part in after])
    assert len(set(actions.tolist())) > 3


def test_eagle2_drafts_everything_and_verifies_a_fixed_number(env):
    for nodes, tree in ((5, "verify-4"), (8, "verify-8"), (None, "verify-12"), (0, "verify-0")):
        policy = Eagle2(env) if nodes is None else Eagle2(env, nodes=nodes)
        steps = run_episode(env, policy, "t0", seed=0).steps
        assert {(step.deeper, step.tree) for step in steps} == {(3, tree)}


def test_fixed_nodes_fall_back_to_what_is_drafted(env):
    policy = StagedThreshold(env, thresholds="0|9|9", nodes=8)
    steps = run_episode(env, policy, "t0", seed=0).steps
    assert {(step.deeper, step.tree) for step in steps} == {(1, "verify-2")}


def test_eagle2_cost_aware_drafts_everything_and_verifies_what_pays(env):
    policy, like = Eagle2CostAware(env, rate=40), StagedThreshold(env, thresholds=[0, 0, 0], rate=40)
    for prompt in ("t0", "t1", "t2"):
        steps = run_episode(env, policy, prompt, seed=0).steps
        assert [s.action for s in steps] == [s.action for s in run_episode(env, like, prompt, seed=0).steps]
        assert {step.deeper for step in steps} == {3}


def test_dear_nodes_are_not_verified(env, tmp_path):
    cheap = StagedThreshold(env, thresholds="0|0|0", costs="analytic:base=0.03")
    dear = StagedThreshold(env, thresholds="0|0|0", costs="analytic:base=0.03|node=9")
    sizes = [
        [int(step.tree[7:]) for step in run_episode(env, policy, "t1", seed=0).steps]
        for policy in (cheap, dear)
    ]
    assert set(sizes[0]) == {12}
    assert set(sizes[1]) == {0}


@pytest.mark.parametrize(
    "policy",
    [
        (StagedThreshold, {"thresholds": [0.1, 0.2, 0.3], "costs": COSTS.replace(",", "|"), "rate": 50}),
        (StagedThreshold, {"nodes": 4}),
        (Eagle2, {"nodes": 8}),
        (Eagle2CostAware, {"rate": 33}),
    ],
)
def test_a_policy_file_brings_back_the_same(env, tmp_path, policy):
    kind, options = policy
    made = kind(env, **options)
    PolicyFile.of(made, {"how": "test"}).save(tmp_path / "p.json")
    file = PolicyFile.load(tmp_path / "p.json")
    file.check(made.name, env)
    again = kind(env, **file.options)
    assert again.spec == made.spec
    for prompt in ("t0", "t3"):
        runs = [run_episode(env, p, prompt, seed=0).steps for p in (made, again)]
        assert [step.decisions for step in runs[0]] == [step.decisions for step in runs[1]]


def test_a_file_of_other_stages_is_refused(env, tmp_path):
    PolicyFile.of(StagedThreshold(env)).save(tmp_path / "p.json")
    other = staged_settings(tmp_path, stages=dataclasses.replace(STAGES, curves=()))
    with pytest.raises(ValueError, match="the policy file belongs to the bank"):
        PolicyFile.load(tmp_path / "p.json").check(
            "staged-threshold", gymnasium.make("EntMTP/StagedReplay-v0", **other)
        )


@pytest.mark.parametrize("kind", [StagedThreshold, Eagle2, Eagle2CostAware])
def test_only_staged_environments_will_do(fake_env, kind):
    with pytest.raises(ValueError, match=f"policy '{kind.name}' needs a staged environment"):
        kind(fake_env())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": "0.1|0.2"}, "must be 3 numbers, one for each depth"),
        ({"thresholds": 0.5}, "must be 3 numbers"),
        ({"thresholds": "0|a|1"}, "not a number"),
        ({"nodes": 1.5}, "whole number"),
        ({"rate": 0}, "must be positive"),
        ({"costs": "analytic:node=1"}, "write analytic:base="),
    ],
)
def test_wrong_options(env, options, message):
    with pytest.raises(ValueError, match=message):
        StagedThreshold(env, **options)


@pytest.mark.parametrize("settings", [{}, {"rate": 50.0}, {"nodes": 4}, {"thresholds": "0|0.2|0.1"}])
def test_alone_it_decides_as_in_a_batch(env, settings):
    rng = np.random.default_rng(3)
    policy = StagedThreshold(env, costs=COSTS, **settings)
    alone, state, states = [], None, None
    for turn in range(60):
        stage = int(rng.integers(DEPTH + 1))
        scores = {f"depth_{d + 1}_value_1": rng.random() * 0.5 for d in range(DEPTH)}
        seen = observe(env, stage, int(rng.integers(1, 1500)), **scores, **sums(rng, stage))
        start = np.array([turn % 20 == 0])
        action, state = policy.predict(seen, state, start)
        (expected, other), states = policy.predict(np.stack((seen, seen)), states, start.repeat(2))
        assert action == expected == other
        assert action.dtype == np.int64
        for one, both in zip(state or (), states or (), strict=True):
            assert one == pytest.approx(both[:1], rel=1e-12)
        alone.append(int(action))
    assert len(set(alone)) > 2
