import json

import gymnasium
import numpy as np
import pytest

from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.trees import DraftTree, TopologyBank
from policies import make_policy
from policies.lockstep import replay
from tests.policies.learning import ALL, NOTHING, ONE, play, rate, replay_of
from tests.recordings import COSTS, random_recording, saved_settings

LEARNERS = ("bandit", "ucb")
TWO = TopologyBank([DraftTree.chain(1)])


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(3), texts=6)
    return saved_settings(tmp_path_factory.mktemp("online"), recording)


@pytest.fixture(scope="module")
def env(settings):
    return gymnasium.make("EntMTP/Replay-v0", **settings)


@pytest.fixture(scope="module")
def stationary(tmp_path_factory):
    return replay_of(tmp_path_factory.mktemp("stationary"), ALL, ALL, ONE, NOTHING, costs=COSTS)


def paid(policy):
    """Tokens and seconds that each tree was paid, ``(K, 2)``."""
    return policy.learned["moments"][:, 0]


def totals(steps, trees):
    """The same of steps ``(action, tokens, seconds)``."""
    expected = np.zeros((trees, 2))
    for action, tokens, seconds in steps:
        expected[action] += tokens, seconds
    return expected


@pytest.mark.parametrize("spec", LEARNERS)
def test_payoffs_are_tokens_beyond_the_throughput_so_far(bare_env, spec):
    env = bare_env(TWO, features=("base_top1",))
    env.last_step = 9, 9.0  # of a step that it did not choose, so it must not count
    policy, state, steps = make_policy(spec, env), None, []
    assert policy.throughput == 0
    for tokens, seconds in [(1, 0.5), (2, 1.5), (1, 0.25), (3, 1.0), (1, 0.75)]:
        action, state = policy.predict(np.array([0.5], np.float32), state)
        env.last_step = tokens, seconds
        steps.append((int(action), tokens, seconds))
    policy.predict(np.array([0.5], np.float32), state)
    assert policy.throughput == pytest.approx(2.0)
    expected = [sum(tokens - 2.0 * seconds for a, tokens, seconds in steps if a == tree) for tree in (0, 1)]
    assert policy.payoffs()[:, 0] == pytest.approx(expected)


@pytest.mark.parametrize("spec", LEARNERS)
def test_throughput_is_sought_not_the_mean_of_the_rates(bare_env, spec):
    """Tree 1 has rates of 4 and 1/4 tokens a second in turns, 2.1 on average, yet 2 tokens take 4.25 s."""
    env = bare_env(TWO, features=("base_top1",))
    env.last_step = 0, 0.0
    policy, state, actions = make_policy(spec, env), None, []
    for turn in range(600):
        action, state = policy.predict(np.zeros(1, np.float32), state)
        actions.append(int(action))
        env.last_step = (2, 2.0) if action == 0 else (1, (0.25, 4.0)[turn % 2])
    assert actions[300:].count(1) < 30


@pytest.mark.parametrize("spec", ["bandit:features=base_entropy|context_fraction", "ucb"])
def test_the_best_static_tree_is_found(stationary, spec):
    static = {tree: make_policy(f"static:{tree}", stationary) for tree in stationary.unwrapped.bank.names}
    assert max(static, key=lambda tree: rate(play(stationary, static[tree]))) == "chain-3"
    policy = make_policy(spec, stationary)
    steps = [step for steps in play(stationary, policy, rounds=4)[-20:] for step in steps]
    assert np.mean([step.tree == "chain-3" for step in steps]) > 0.9


@pytest.mark.parametrize("spec", LEARNERS)
def test_a_single_environment_pays_every_step_but_the_last_of_a_text(env, spec):
    policy = make_policy(spec, env)
    steps = [
        (step.action, step.tokens, step.seconds)
        for steps in play(env, policy, rounds=5)
        for step in steps[:-1]
    ]
    assert len(steps) > 60
    np.testing.assert_allclose(paid(policy), totals(steps, len(policy.bank)))


@pytest.mark.parametrize("spec", LEARNERS)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_in_lock_step_all_environments_pay(settings, spec, mode):
    """Steps that only begin a text pay nothing, although the policy is not told that it begins."""
    envs = ReplayVectorEnv(4, autoreset_mode=mode, **settings)
    policy, state, steps = make_policy(spec, envs), None, []
    observations, _ = envs.reset(seed=0)
    for _ in range(80):
        last = len(steps)
        actions, state = policy.predict(observations, state)
        observations, _, terminated, truncated, infos = envs.step(actions)
        ended = terminated | truncated
        for i in range(4):
            if infos["seconds"][i] > 0 and not (mode == "SameStep" and ended[i]):
                steps.append((actions[i], infos["tokens"][i], infos["seconds"][i]))
    assert last > 150
    np.testing.assert_allclose(paid(policy), totals(steps[:last], len(policy.bank)))


@pytest.mark.parametrize("spec", LEARNERS)
def test_recorded_texts_in_lock_step(settings, spec):
    envs = ReplayVectorEnv(6, **settings)
    policy = make_policy(spec, envs)
    episodes = replay(envs, policy, [text.prompt_id for text in envs.prompts]).episodes
    assert [episode.tokens for episode in episodes] == envs.tables.recording.lengths.tolist()
    assert paid(policy).min(axis=0)[0] >= 1


@pytest.mark.parametrize("spec", LEARNERS)
def test_it_learns_from_a_live_decoder(tiny_files, spec):
    env = gymnasium.make("EntMTP/Live-v0", **tiny_files.kwargs)
    policy = make_policy(spec, env)
    steps = [(s.action, s.tokens, s.seconds) for steps in play(env, policy) for s in steps[:-1]]
    assert len({action for action, *_ in steps}) > 5
    np.testing.assert_allclose(paid(policy), totals(steps, len(policy.bank)))


@pytest.mark.parametrize("spec", LEARNERS)
def test_the_same_seed_decodes_alike(env, spec):
    actions = [[s.action for steps in play(env, make_policy(spec, env)) for s in steps] for _ in range(2)]
    assert actions[0] == actions[1]


@pytest.mark.parametrize("spec", LEARNERS)
def test_what_was_learned_is_saved_and_goes_on(env, tmp_path, spec):
    policy = make_policy(spec, env)
    play(env, policy, rounds=3)
    policy.save(tmp_path / "warm.json", calibration={"rounds": 3})
    warm = make_policy(f"{spec}@{tmp_path}/warm.json", env)
    assert warm.spec == policy.spec
    assert warm.learned.keys() == policy.learned.keys()
    for key, array in warm.learned.items():
        np.testing.assert_array_equal(array, policy.learned[key])
    play(env, warm)
    assert paid(warm).sum() > paid(policy).sum()
    frozen = make_policy(f"{spec}:learn=false@{tmp_path}/warm.json", env)
    before = paid(frozen).copy()
    again = [play(env, frozen) for _ in range(2)]
    assert [[s.action for s in steps] for steps in again[0]] == [[s.action for s in t] for t in again[1]]
    np.testing.assert_array_equal(paid(frozen), before)


@pytest.mark.parametrize("spec", LEARNERS)
def test_a_file_for_another_bank_or_other_features_is_refused(env, settings, tmp_path, spec):
    make_policy(spec, env).save(tmp_path / "p.json")
    TWO.save(tmp_path / "two.json")
    for other, message in [
        ({"features": "base"}, "belongs to the features"),
        ({"bank": f"{tmp_path}/two.json"}, "belongs to the bank"),
        ({"probe": "first"}, "made with probe='none'"),
    ]:
        elsewhere = gymnasium.make("EntMTP/Replay-v0", **settings | other)
        with pytest.raises(ValueError, match=message):
            make_policy(f"{spec}@{tmp_path}/p.json", elsewhere)


@pytest.mark.parametrize("spec", LEARNERS)
@pytest.mark.parametrize("wrong", [None, [1, 2], "x", [[["x"]]], [[1], [1, 2]]])
def test_damaged_files_are_refused(env, tmp_path, spec, wrong):
    path = tmp_path / "p.json"
    make_policy(spec, env).save(path)
    document = json.loads(path.read_text())
    for key in document["options"]["learned"]:
        learned = document["options"]["learned"] | {key: wrong}
        path.write_text(json.dumps(document | {"options": document["options"] | {"learned": learned}}))
        with pytest.raises(ValueError, match=rf"learned {key} must be \(4,.* finite numbers"):
            make_policy(f"{spec}@{path}", env)
    for learned in (wrong, {}):
        if learned is not None:
            path.write_text(json.dumps(document | {"options": {"learned": learned}}))
            with pytest.raises(ValueError, match="learned must have moments, "):
                make_policy(f"{spec}@{path}", env)


@pytest.mark.parametrize("spec", LEARNERS)
def test_where_it_cannot_learn_it_says_so(env, bare_env, spec):
    elsewhere = bare_env(TWO)
    with pytest.raises(ValueError, match=r"learns from env\.unwrapped\.last_step.*learn=false"):
        make_policy(spec, elsewhere)
    make_policy(f"{spec}:learn=false", elsewhere)
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="got 3 observations, its environment has 1 texts"):
        make_policy(spec, env).predict(np.stack([observation] * 3))
    with pytest.raises(ValueError, match="learn='maybe' must be true or false"):
        make_policy(f"{spec}:learn=maybe", env)
