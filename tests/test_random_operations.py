"""Whatever is done to an environment, in whatever order, its promises hold."""

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.recordings import BANK, COSTS, record_tiny
from tests.staged import STAGES, staged_settings

LIVE, REPLAY, STAGED, STAGED_REPLAY = IDS = tuple(
    f"EntMTP/{name}-v0" for name in ("Live", "Replay", "Staged", "StagedReplay")
)


@pytest.fixture(params=IDS)
def make(request, tiny_files, tmp_path):
    if request.param == LIVE:
        settings = tiny_files.kwargs
    elif request.param == STAGED:
        STAGES.save(tmp_path / "stages.json")
        settings = tiny_files.kwargs | {"stages": str(tmp_path / "stages.json")}
    elif request.param == REPLAY:
        record_tiny(tiny_files, 24).save(tmp_path / "recording.npz")
        BANK.save(tmp_path / "bank.json")
        names = {"recording": "recording.npz", "bank": "bank.json"}
        settings = {key: str(tmp_path / name) for key, name in names.items()} | {"costs": COSTS}
    else:
        settings = staged_settings(tmp_path, texts=6)
    return lambda: gymnasium.make(request.param, **settings).unwrapped


def plain_text(env, prompt_id):
    """The text and the number of its tokens when every decision is the first that decodes."""
    env.reset(options={"prompt_id": prompt_id})
    while True:
        *_, terminated, truncated, info = env.step(int(is_staged(env)))
        if terminated or truncated:
            return info["text"], info["total_tokens"], terminated


def is_staged(env):
    return hasattr(env, "action_masks")


class Operations(RuleBasedStateMachine):
    """Resets, steps, mistakes and closings, in any order."""

    def __init__(self, env, expected):
        super().__init__()
        self.env, self.expected = env, expected
        self.running, self.ids = False, sorted(expected)

    @initialize()
    def begin_closed(self):
        # An unseeded reset goes on with the order of prompts where the example before left it.
        self.env.reset(seed=0)
        self.env.close()

    @rule(place=st.integers(0, 5), seed=st.none() | st.integers(0, 3), chosen=st.booleans())
    def reset(self, place, seed, chosen):
        options = {"prompt_id": self.ids[place]} if chosen else None
        observation, info = self.env.reset(seed=seed, options=options)
        assert info["prompt_id"] == self.ids[place] or not chosen
        self.prompt_id, self.running = info["prompt_id"], True
        self.tokens, self.seconds, self.observations = 0, 0.0, []
        self.check(observation, info)
        assert (info["tokens"], info["finish_reason"], info["text"]) == (0, "", "")

    @precondition(lambda self: self.running)
    @rule(action=st.integers(0, 99), kind=st.sampled_from((int, np.int64, np.array)))
    def step(self, action, kind):
        action %= int(self.env.action_space.n)
        observation, reward, terminated, truncated, info = self.env.step(kind(action))
        self.tokens += info["tokens"]
        self.seconds += info["seconds"]
        self.check(observation, info)
        assert [type(reward), type(terminated), type(truncated)] == [float, bool, bool]
        assert np.isfinite(reward)
        assert not (terminated and truncated)
        self.running = not (terminated or truncated)
        if not self.running:
            assert (info["text"], info["total_tokens"], terminated) == self.expected[self.prompt_id]

    @precondition(lambda self: self.running)
    @rule(action=st.sampled_from((-1, 10**6, 10**30, "many", None)))
    def mistake_an_action(self, action):
        with pytest.raises((ValueError, TypeError)):
            self.env.step(action)

    @precondition(lambda self: not self.running)
    @rule()
    def step_without_a_text(self):
        with pytest.raises(ResetNeeded):
            self.env.step(0)

    @rule(options=st.sampled_from(({"prompt_id": "nobody"}, {"prompt": "t1"})))
    def mistake_a_reset(self, options):
        with pytest.raises(ValueError, match=r"no prompt|unknown reset options"):
            self.env.reset(options=options)

    @rule()
    def close(self):
        self.env.close()
        self.running = False

    def check(self, observation, info):
        assert self.env.observation_space.contains(observation)
        assert not any(np.shares_memory(observation, other) for other in self.observations)
        self.observations.append(observation)
        assert info["total_tokens"] == self.tokens
        assert info["total_seconds"] == pytest.approx(self.seconds)
        assert (info["tokens"], info["seconds"]) == self.env.last_step
        if is_staged(self.env):
            np.testing.assert_array_equal(info["action_mask"], self.env.action_masks())


def test_operations_in_any_order(make):
    env = make()
    ids = [prompt.prompt_id for prompt in env.prompts]
    expected = {prompt_id: plain_text(env, prompt_id) for prompt_id in ids}
    run_state_machine_as_test(
        lambda: Operations(env, expected), settings=settings(max_examples=40, stateful_step_count=40)
    )
