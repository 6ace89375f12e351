"""What goes wrong in a model while a staged environment drafts and verifies."""

import gymnasium
import numpy as np
import pytest
import torch

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import DEEPER, Stages
from tests.entmtp_env.test_model_errors import ERRORS, PROMPT, failing

STAGES = Stages("tiny", DraftShape((1, 2, 2), (4, 3, 2)), (0, 2, 8))
CYCLE = (DEEPER, DEEPER, 3)


@pytest.fixture
def make(tiny_files, tmp_path):
    STAGES.save(tmp_path / "stages.json")
    settings = tiny_files.kwargs | {"stages": str(tmp_path / "stages.json")}
    return lambda **changes: gymnasium.make("EntMTP/Staged-v0", **(settings | changes)).unwrapped


def play(env):
    """Final info and the sum of rewards of a text that was begun; each step drafts two depths."""
    total, done, count = 0.0, False, 0
    while not done:
        observation, reward, terminated, truncated, info = env.step(CYCLE[count % 3])
        assert env.observation_space.contains(observation)
        total, done, count = total + reward, terminated or truncated, count + 1
    return info, total


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("deepen", "step {}, depth 0, deeper"),
        ("verify_best", "step {}, depth 2, verify-8"),
        # Once at the reset, then in every step.
        ("base_signals", "step {}, depth 2, verify-8"),
    ],
)
def test_out_of_memory_ends_the_text_and_the_next_works(make, monkeypatch, place, where, error):
    env, fresh = make(), make()
    fresh.reset(**PROMPT)
    expected = play(fresh)[0]["text"]
    for step in (1, 3):
        env.reset(**PROMPT)
        with monkeypatch.context() as patch:
            call = 2 * step - 1 if place == "deepen" else step
            patch.setattr(env.decoder, place, failing(getattr(env.decoder, place), ERRORS[error], call))
            info, rewards = play(env)
        assert info["finish_reason"].startswith(
            f"error: prompt 't3', {where.format(step)}: no memory is left"
        )
        assert info["text"] == env.engine.decode(env.decoder.tokens)
        assert expected.startswith(info["text"])
        assert info["total_tokens"] == len(env.decoder.tokens) < len(expected.split())
        assert rewards == pytest.approx(info["total_tokens"] / info["total_seconds"])
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(DEEPER)
        env.reset(**PROMPT)
        assert play(env)[0]["text"] == expected


def test_out_of_memory_at_a_reset_is_clear_and_the_next_works(make, monkeypatch):
    env = make()
    env.reset(seed=0)
    env.step(DEEPER)
    with monkeypatch.context() as patch:
        patch.setattr(env.decoder, "start", failing(env.decoder.start, ERRORS["cuda"], 1))
        with pytest.raises(MemoryError, match=r"^prompt 't3': no memory is left on the device"):
            env.reset(**PROMPT)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(DEEPER)
    fresh = make()
    for each in (env, fresh):
        each.reset(**PROMPT)
    assert play(env)[0]["text"] == play(fresh)[0]["text"]


@pytest.mark.parametrize("call", [1, 2, 4])
def test_logits_of_nan_name_the_step_and_the_next_text_works(make, monkeypatch, call):
    env, fresh = make(), make()
    fresh.reset(**PROMPT)
    expected = play(fresh)[0]["text"]
    logits = env.engine.backbone.logits

    def of_nan():
        return torch.full((9, env.engine.backbone.config.vocab_size), np.nan)

    with monkeypatch.context() as patch:
        patch.setattr(env.engine.backbone, "logits", failing(logits, of_nan, call))
        # The first call is the prefill's.
        if call > 1:
            env.reset(**PROMPT)
        name = "" if call == 1 else f", step {call - 1}, depth 2, verify-8"
        with pytest.raises(FloatingPointError, match=rf"^prompt 't3'{name}: .*NaN"):
            env.reset(**PROMPT) if call == 1 else play(env)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(DEEPER)
    env.reset(**PROMPT)
    assert play(env)[0]["text"] == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_draft_heads_of_nan_are_named_too(make, monkeypatch, depth):
    env, fresh = make(), make()
    fresh.reset(**PROMPT)
    expected = play(fresh)[0]["text"]
    heads = env.engine.heads
    logits = heads.logits
    env.reset(**PROMPT)
    with monkeypatch.context() as patch:
        factors = {depth: np.nan}
        patch.setattr(heads, "logits", lambda head, inputs: logits(head, inputs) * factors.get(head, 1))
        name = f"prompt 't3', step 1, depth {depth - 1}, deeper: the draft heads' logits are NaN"
        with pytest.raises(FloatingPointError, match=f"^{name}"):
            play(env)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(DEEPER)
    env.reset(**PROMPT)
    assert play(env)[0]["text"] == expected


def test_a_bug_is_not_hidden(make, monkeypatch):
    env = make()
    env.reset(seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(env.decoder, "deepen", failing(None, lambda: [][0], 1))
        with pytest.raises(IndexError):
            env.step(DEEPER)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(DEEPER)
    env.reset(seed=0)
    env.step(DEEPER)


def test_a_prompt_that_is_too_long_is_named(make):
    env = make(capacity=14)
    env.reset(options={"prompt_id": "t4"})
    with pytest.raises(
        ValueError, match=r"prompt 't5': .* 6 tokens and a tree of 8 nodes do not fit into 14"
    ):
        env.reset(options={"prompt_id": "t5"})
    assert make(capacity=15).reset(options={"prompt_id": "t5"})[1]["prompt_id"] == "t5"
