import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.features import FeatureSet
from entmtp_env.staged_features import StagedFeatures
from policies import SchedulerPolicy, make_policy, policy_names
from tests.fake_env import NOT_FOR_FAKES
from tests.staged import STAGES

SPECS = [
    *(name for name in policy_names() if name not in {"bandit", "static", "ucb", *NOT_FOR_FAKES}),
    "bandit:learn=false",
    "ucb:learn=false",
    "static:chain-2",
    "threshold:on=0.7,off=0.3",
]


class Counter(SchedulerPolicy):
    """Acts by the steps since the episode began, and keeps a 2-D memory beside it."""

    def initial_memory(self, n):
        return np.zeros(n, np.int64), np.zeros((n, 3), np.float32)

    def act(self, observations, memory):
        count, trace = memory
        return count, (count + 1, trace + observations[:, :1])


class Last(SchedulerPolicy):
    def act(self, observations, memory):
        return np.full(len(observations), len(self.bank) - 1, dtype=np.int32), memory


def test_a_single_observation_gives_a_scalar_action(env):
    action, state = Counter(env).predict(env.reset(seed=0)[0])
    assert action.shape == ()
    assert action.dtype == np.int64
    assert int(action) == 0
    assert [a.shape for a in state] == [(1,), (1, 3)]


def test_a_batch_gives_a_batch(env):
    action, state = Last(env).predict(np.zeros((5, len(env.feature_names)), np.float32))
    assert action.tolist() == [len(env.bank) - 1] * 5
    assert action.dtype == np.int64
    assert state is None


def test_episode_start_resets_only_its_rows(env):
    policy, observations = Counter(env), np.ones((3, len(env.feature_names)), np.float32)
    _, state = policy.predict(observations)
    _, state = policy.predict(observations, state)
    actions, state = policy.predict(observations, state, np.array([False, True, False]))
    assert actions.tolist() == [2, 0, 2]
    assert state[1].tolist() == [[3] * 3, [1] * 3, [3] * 3]


def test_the_wrong_width_is_refused(env):
    with pytest.raises(ValueError, match=r"8 features, got shape \(3,\)"):
        Last(env).predict(np.zeros(3, np.float32))


def test_a_state_of_another_batch_is_refused(env):
    policy, width = Counter(env), len(env.feature_names)
    _, state = policy.predict(np.zeros(width, np.float32))
    with pytest.raises(ValueError, match="state of 1 environments with 4 observations"):
        policy.predict(np.zeros((4, width), np.float32), state)


class Returns(SchedulerPolicy):
    """Returns what it is given, whatever that is."""

    def act(self, observations, memory):
        return self.decision


def of(*values, dtype=None):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("decision", "returned"),
    [
        ((of(2.9, 1.0), ()), r"\(float64 array of shape \(2,\), \(\)\)"),
        ((of(True, False), ()), "bool array"),
        ((3, ()), r"\(int 3, \(\)\)"),
        ((of(1), ()), r"int64 array of shape \(1,\)"),
        ((of([1], [2]), ()), r"int64 array of shape \(2, 1\)"),
        ((of(1, 2), of(0, 0)), "int64 array of shape"),
        ((of(1, 2), None), "NoneType None"),
        ((of(1, 2), (of(0, 0), of(0.5))), r"float64 array of shape \(1,\)\)\)$"),
        ((of(1, 2), (0.5,)), r"\(float 0\.5,\)"),
        ((of(1, 2), (np.float64(0.5),)), r"\(float64 0\.5,\)"),
        (of(1, 2), r"int64 array of shape \(2,\)$"),
        (None, "NoneType None"),
    ],
)
def test_what_act_must_return_is_said(env, decision, returned):
    policy = Returns(env)
    policy.decision = decision
    with pytest.raises(
        ValueError, match=rf"{Returns.name}'.*integers of shape \(2,\).*returned .*{returned}"
    ):
        policy.predict(np.zeros((2, len(env.feature_names)), np.float32))


@pytest.mark.parametrize(
    "actions", [[1, 2], of(1, 2, dtype=np.uint8), of(1, 2, dtype=np.int32), [np.int64(1), np.int64(2)]]
)
def test_integers_of_any_kind_are_actions(env, actions):
    policy = Returns(env)
    policy.decision = actions, (np.zeros((2, 3)), of("a", "b"))
    chosen, state = policy.predict(np.zeros((2, len(env.feature_names)), np.float32))
    assert (chosen.tolist(), chosen.dtype) == ([1, 2], np.int64)
    assert state is policy.decision[1]


def test_a_missing_feature_is_named_with_the_fix(fake_env):
    with pytest.raises(ValueError, match=r"'best_path_value'.*did you mean 'deep_path_value'.*features="):
        make_policy("threshold", fake_env(features=("base_top1", "deep_path_value")))


def test_groups_are_those_of_the_features_that_were_asked_for(env, bare_env):
    features = FeatureSet(env.bank.depth, [len(tree) for tree in env.bank])
    whole = bare_env(env.bank, features.names)
    whole.feature_set = features
    assert make_policy("threshold:score=accept_last", whole).reads == "acceptance"
    assert make_policy("ema-ladder", whole).reads == "acceptance,position"
    assert (
        make_policy("bandit:learn=false,features=base_entropy|accept_last", whole).reads == "base,acceptance"
    )
    assert make_policy("static:chain-2", whole).reads is None
    # An environment that does not tell them.
    assert make_policy("threshold:score=accept_last", env).reads is None


def test_a_class_without_a_name_is_called_by_its_path(env):
    assert Counter.name == f"{__name__}:Counter"
    assert Last(env).spec == f"{__name__}:Last"


@pytest.mark.parametrize("spec", [*SPECS, "bandit", "ucb"])
def test_stages_are_no_bank(bare_env, spec):
    staged = bare_env(STAGES, StagedFeatures(STAGES).names)
    with pytest.raises(ValueError, match=r"schedules a bank of trees, which .* not have; .*EntMTP/Live-v0"):
        make_policy(spec, staged)


@pytest.mark.parametrize("spec", SPECS)
def test_the_spec_rebuilds_the_policy(env, spec):
    policy = make_policy(spec, env)
    again = make_policy(policy.spec, env)
    assert type(again) is type(policy)
    assert dict(again.options) == dict(policy.options)
    assert policy.spec.partition(":")[0] == spec.partition(":")[0] == policy.name


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_batch_equals_singles_with_any_resets(env, spec, data):
    n, steps = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 25))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    policy = make_policy(spec, env)
    observations = rng.random((steps, n, len(env.feature_names)), dtype=np.float32)
    starts = rng.random((steps, n)) < 0.15
    batch, singles = None, [None] * n
    for seen, start in zip(observations, starts, strict=True):
        before = [array.copy() for array in batch or ()]
        kept = batch
        actions, batch = policy.predict(seen, batch, start)
        assert all(np.array_equal(a, b) for a, b in zip(before, kept or (), strict=True)), "state was changed"
        for i in range(n):
            action, singles[i] = policy.predict(seen[i], singles[i], start[i : i + 1])
            assert action == actions[i]


@pytest.mark.parametrize("spec", SPECS)
def test_interleaved_episodes_do_not_see_each_other(env, run, spec):
    first, second = np.random.default_rng(1).random((2, 60, len(env.feature_names)), dtype=np.float32)
    policy, alone = make_policy(spec, env), make_policy(spec, env)
    states, actions = [None, None], ([], [])
    for pair in zip(first, second, strict=True):
        for i, observation in enumerate(pair):
            action, states[i] = policy.predict(observation, states[i])
            actions[i].append(int(action))
    assert actions == (run(alone, first), run(alone, second))


@pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")
@pytest.mark.parametrize("spec", SPECS)
def test_stable_baselines_evaluates_every_policy(fake_env, spec):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    venv = vec_env.DummyVecEnv([fake_env] * 3)
    rewards, lengths = evaluation.evaluate_policy(
        make_policy(spec, fake_env()), venv, n_eval_episodes=6, return_episode_rewards=True
    )
    assert lengths == [30] * 6
    assert min(rewards) > 0
