import dataclasses

import gymnasium
import numpy as np
import pytest

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies import SchedulerPolicy, make_policy, run_episode
from policies.lockstep import Script, replay
from policies.registry import make_named_policy
from tests.recordings import random_recording

COSTS = "analytic:base=0.02,node=0.0005,depth=0.001,context=0.0001"


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("lockstep") / "r.npz"
    random_recording(np.random.default_rng(1), texts=9, depth=4, longest=40, cap=40).save(path)
    return {"recording": str(path), "costs": COSTS}


@pytest.fixture(scope="module")
def envs(settings):
    return ReplayVectorEnv(num_envs=9, **settings)


def ids_of(envs):
    return [text.prompt_id for text in envs.prompts]


@pytest.mark.parametrize(
    "spec", ["autoregressive", "static:tree-8x4", "threshold:on=0.5", "ladder", "ema-ladder", "random:seed=3"]
)
def test_every_text_goes_as_it_does_alone(settings, envs, spec):
    env = gymnasium.make("EntMTP/Replay-v0", **settings)
    replayed = replay(envs, make_named_policy(spec, envs), ids_of(envs))
    policy = make_policy(spec, env)
    for episode in replayed.episodes:
        alone = run_episode(env, policy, episode.prompt_id, seed=5)
        steps = [dataclasses.replace(step, policy_seconds=0.0) for step in alone.steps]
        for step, other in zip(episode.steps, steps, strict=True):
            assert dataclasses.replace(step, reward=0.0) == dataclasses.replace(other, reward=0.0)
            assert step.reward == pytest.approx(other.reward)
        assert dataclasses.replace(episode, steps=()) == dataclasses.replace(alone, steps=())
    assert {e.finish_reason for e in replayed.episodes} <= {"eos", "length"}
    assert replayed.policy_seconds > 0


def test_texts_come_in_the_order_asked_for(settings):
    envs = ReplayVectorEnv(num_envs=2, **settings)
    wanted = [ids_of(envs)[k] for k in (7, 2)]
    replayed = replay(envs, make_named_policy("autoregressive", envs), wanted)
    assert [episode.prompt_id for episode in replayed.episodes] == wanted
    assert [episode.tokens for episode in replayed.episodes] == envs.tables.recording.lengths[[7, 2]].tolist()


def test_a_schedule_can_be_repeated(envs):
    oracle = solve(envs.tables)
    schedules = [oracle.schedule(i) for i in range(9)]
    episodes = replay(envs, Script(schedules), ids_of(envs)).episodes
    assert [[step.action for step in episode.steps] for episode in episodes] == schedules
    assert [episode.seconds for episode in episodes] == pytest.approx(oracle.seconds.tolist())


def test_behind_a_schedule_that_is_too_short_comes_the_first_tree(envs):
    episodes = replay(envs, Script([[4], *[[]] * 8]), ids_of(envs)).episodes
    assert [step.action for step in episodes[0].steps[:3]] == [4, 0, 0][: len(episodes[0].steps)]
    assert {step.action for episode in episodes[1:] for step in episode.steps} == {0}


class Watcher:
    def __init__(self):
        self.starts = []

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        assert observation.shape == (9, observation.shape[1])
        assert deterministic
        assert (state is None) == (not self.starts)
        self.starts.append(episode_start.tolist())
        return np.zeros(9, dtype=np.int64), (np.array([len(self.starts)]),)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_policy_is_called_once_a_step_and_told_where_texts_begin(settings, mode):
    envs, watcher = ReplayVectorEnv(9, mode, **settings), Watcher()
    replay(envs, watcher, ids_of(envs))
    lengths = envs.tables.recording.lengths
    # After the last observation of a text there is a step that only begins another.
    behind = lengths + (mode == "NextStep")
    assert len(watcher.starts) == lengths.max() > lengths.min()
    for step, starts in enumerate(watcher.starts):
        assert starts == [step in (0, *range(last, lengths.max())) for last in behind.tolist()]


class Learner(SchedulerPolicy):
    """Notes what the decision before was paid, by text."""

    def __init__(self, env):
        super().__init__(env)
        self.env, self.paid = env, []

    def initial_memory(self, n):
        return (np.zeros(n, dtype=bool),)

    def act(self, observations, memory):
        tokens, seconds = self.env.last_step
        self.paid += [(int(i), tokens[i], seconds[i]) for i in np.flatnonzero(memory[0])]
        return np.full(len(observations), 1), (np.ones(len(observations), dtype=bool),)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_what_a_policy_is_paid_is_what_the_steps_of_its_texts_were(settings, mode):
    envs = ReplayVectorEnv(9, mode, **settings)
    learner = Learner(envs)
    episodes = replay(envs, learner, ids_of(envs)).episodes
    longest = max(len(episode.steps) for episode in episodes)
    for i, episode in enumerate(episodes):
        steps = [(i, step.tokens, step.seconds) for step in episode.steps]
        # With SameStep the payoff of a text's last step is gone when it would be asked for.
        known = steps[:-1] if mode == "SameStep" or len(steps) == longest else steps
        assert [own for own in learner.paid if own[0] == i] == known


def test_a_wrong_policy_is_named(envs):
    with pytest.raises(ValueError, match=r"policy 'static:nosuch': .* has no tree 'nosuch'"):
        make_named_policy("static:nosuch", envs)
