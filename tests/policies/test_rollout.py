import time

import numpy as np
import pytest

from policies import make_policy, run_episode


class Scripted:
    """Plays given actions in the shape asked for, slowly, and notes what it was called with."""

    def __init__(self, actions, shape=(), pause=0.0):
        self.actions, self.shape, self.pause, self.calls = actions, shape, pause, []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.calls.append((observation.copy(), state, episode_start.tolist(), deterministic))
        time.sleep(self.pause)
        step = 0 if state is None else int(state[0])
        return np.full(self.shape, self.actions[step]), (np.array(step + 1),)


def test_the_accounts_add_up(fake_env):
    env = fake_env(max_steps=5)
    script = Scripted([0, 3, 3, 9, 0], pause=0.002)
    episode = run_episode(env, script, "p7", seed=1)
    assert [step.action for step in episode.steps] == [0, 3, 3, 9, 0]
    assert [step.tree for step in episode.steps] == [env.bank[a].name for a in (0, 3, 3, 9, 0)]
    assert all(step.tokens == step.accept_length + 1 for step in episode.steps)
    assert episode.tokens == env.tokens
    assert episode.seconds == pytest.approx(env.seconds)
    assert sum(step.reward for step in episode.steps) == pytest.approx(env.tokens / env.seconds)
    assert sum(s.draft_seconds for s in episode.steps) == pytest.approx(env.seconds / 4)
    assert sum(s.verify_seconds for s in episode.steps) == pytest.approx(env.seconds / 2)
    assert episode.switches == 3
    assert episode.tau == env.tokens / 5
    assert 0.01 <= episode.policy_seconds == pytest.approx(sum(s.policy_seconds for s in episode.steps))
    assert (episode.prompt_id, episode.prefill_seconds) == ("p7", env.PREFILL)
    assert (episode.finish_reason, episode.text) == ("length", "x" * env.tokens)


def test_the_policy_is_called_as_the_protocol_says(fake_env):
    script = Scripted([1, 1, 1])
    run_episode(fake_env(max_steps=3), script, "p", seed=0)
    assert [call[2] for call in script.calls] == [[True], [False], [False]]
    assert script.calls[0][1] is None
    assert [int(call[1][0]) for call in script.calls[1:]] == [1, 2]
    assert all(call[3] is True for call in script.calls)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_actions_of_either_shape_work(fake_env, shape):
    episode = run_episode(fake_env(max_steps=1), Scripted([2], shape), "p", seed=0)
    assert [step.action for step in episode.steps] == [2]
    assert episode.switches == 0


def test_an_episode_repeats_and_leaves_nothing_behind(env):
    policy = make_policy("ema-ladder:warmup=1,dwell=1", env)
    first = run_episode(env, policy, "p1", seed=0)
    run_episode(env, policy, "p2", seed=0)
    again = run_episode(env, policy, "p1", seed=0)
    assert [s.action for s in again.steps] == [s.action for s in first.steps]
    assert first.switches > 0


def test_a_stable_baselines_model_is_a_policy(fake_env):
    sb3 = pytest.importorskip("stable_baselines3")
    env = fake_env(max_steps=4)
    model = sb3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=0)
    episode = run_episode(env, model, "p", seed=0)
    expected = int(model.predict(env.reset(options={"prompt_id": "p"})[0], deterministic=True)[0])
    assert len(episode.steps) == 4
    assert episode.steps[0].action == expected
