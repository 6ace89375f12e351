import dataclasses
import itertools
import time

import gymnasium
import numpy as np
import pytest

from policies import StepRecord, make_policy, run_episode
from policies.rollout import decode_steps
from tests.staged import staged_settings


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


def test_finer_parts_are_kept_where_the_environment_tells(fake_env):
    class Telling(type(fake_env())):
        def _info(self, *args):
            info = super()._info(*args)
            parts = {"accept_seconds": 1.0, "commit_seconds": 2.0, "feature_seconds": info["tokens"]}
            return info | parts

    told, untold = (
        run_episode(env, Scripted([1, 2]), "p", seed=0)
        for env in (Telling(max_steps=2), fake_env(max_steps=2))
    )
    assert [(s.accept_seconds, s.commit_seconds) for s in told.steps] == [(1, 2)] * 2
    assert [s.feature_seconds for s in told.steps] == [s.tokens for s in told.steps]
    assert {(s.accept_seconds, s.commit_seconds, s.feature_seconds) for s in untold.steps} == {(0, 0, 0)}


def test_who_reads_no_observation_does_not_pay_for_it(fake_env):
    class Telling(type(fake_env())):
        def _info(self, *args):
            info = super()._info(*args)
            return info | {"feature_seconds": info["seconds"] / 8}

    class Blind(Scripted):
        observes = False

    seeing, blind = (
        run_episode(Telling(max_steps=3), kind([1, 2, 0]), "p", seed=0) for kind in (Scripted, Blind)
    )
    assert blind.seconds == pytest.approx(seeing.seconds * 7 / 8)
    assert [step.feature_seconds for step in blind.steps] == [0, 0, 0]
    assert min(step.feature_seconds for step in seeing.steps) > 0
    assert (seeing.tokens, seeing.text) == (blind.tokens, blind.text)
    assert [s.seconds for s in seeing.unobserved().steps] == pytest.approx([s.seconds for s in blind.steps])
    assert seeing.unobserved().steps[0].feature_seconds == 0


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


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    settings = staged_settings(tmp_path_factory.mktemp("rollout"), texts=4, longest=30, cap=30)
    return gymnasium.make("EntMTP/StagedReplay-v0", **settings)


def by_hand(env, actions, prompt_id):
    """Step a staged environment, and put its infos together into decode steps."""
    _, info = env.reset(seed=0, options={"prompt_id": prompt_id})
    steps, part = [], []
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        part.append(info | {"reward": reward})
        if info["tree"]:
            sums = [sum(own[key] for own in part) for key in SUMMED]
            steps.append((len(part) - 1, info["tree"], info["accept_length"], info["tokens"], *sums))
            part = []
        if terminated or truncated:
            return steps, info
    raise AssertionError("the script was too short")


SUMMED = ("seconds", "draft_seconds", "verify_seconds", "reward")


@pytest.mark.parametrize("seed", range(8))
def test_decisions_to_draft_are_part_of_the_step_that_verifies(staged, seed):
    """Illegal actions among them, which the environment takes as the nearest legal one."""
    rng, prompt_id = np.random.default_rng(seed), f"t{seed % 4}"
    actions = rng.choice(len(staged.unwrapped.bank), 400, p=[0.4, *[0.1] * 6]).tolist()
    expected, info = by_hand(staged, actions, prompt_id)
    script = Scripted(actions, pause=0.0005)
    episode = run_episode(staged, script, prompt_id, seed=0)
    got = [
        (step.deeper, step.tree, step.accept_length, step.tokens, *(getattr(step, key) for key in SUMMED))
        for step in episode.steps
    ]
    assert got == [pytest.approx(own) for own in expected]
    assert episode.seconds == pytest.approx(info["total_seconds"])
    assert episode.policy_seconds >= 0.0005 * len(script.calls)
    names = staged.unwrapped.bank.names
    assert [names[step.action] for step in episode.steps] == [step.tree for step in episode.steps]
    assert episode.switches == sum(a[1] != b[1] for a, b in itertools.pairwise(expected))
    decisions = [action for step in episode.steps for action in step.decisions]
    again = run_episode(staged, Scripted(decisions), prompt_id, seed=0)
    assert len(decisions) == len(script.calls)
    same = dict.fromkeys(("policy_seconds",), 0.0)
    assert [dataclasses.replace(s, **same) for s in again.steps] == [
        dataclasses.replace(s, **same) for s in episode.steps
    ]


def test_an_error_while_drafting_ends_a_step():
    parts = [StepRecord(0, "", 0, 0, 0.25, 0.25, 0.0, 0.0, 1.0)] * 2
    (step,) = decode_steps(parts, ("deeper", "verify-0"))
    assert step == StepRecord(0, "", 0, 0, 0.5, 0.5, 0.0, 0.0, 2.0, deeper=1)
    assert step.decisions == (0, 0)


def test_a_stable_baselines_model_is_a_policy(fake_env):
    sb3 = pytest.importorskip("stable_baselines3")
    env = fake_env(max_steps=4)
    model = sb3.PPO("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu", seed=0)
    episode = run_episode(env, model, "p", seed=0)
    expected = int(model.predict(env.reset(options={"prompt_id": "p"})[0], deterministic=True)[0])
    assert len(episode.steps) == 4
    assert episode.steps[0].action == expected
