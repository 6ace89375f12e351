import re

import gymnasium
import numpy as np
import pytest
import torch

from entmtp_env import engine
from entmtp_env.model_errors import named_errors

ERRORS = {
    "cuda": lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nstack")),
    "driver": lambda: _raise(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be")),
    "cublas": lambda: _raise(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
    ),
    "cpu": lambda: torch.empty(10**14),
    "process": lambda: _raise(MemoryError()),
}
PROMPT = {"options": {"prompt_id": "t3"}, "seed": 0}


def _raise(error):
    raise error


@pytest.fixture
def make(tiny_files):
    return lambda **changes: gymnasium.make("EntMTP/Live-v0", **(tiny_files.kwargs | changes)).unwrapped


def play(env, action=5):
    """Final info and the sum of rewards of a text that was begun."""
    total, done = 0.0, False
    while not done:
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        total, done = total + reward, terminated or truncated
    return info, total


def failing(method, fail, call):
    """A method that fails at its n-th call from now on."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        return fail() if len(calls) >= call else method(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("name", ERRORS)
def test_a_device_without_memory_is_named(name):
    with (
        pytest.raises(
            MemoryError, match=r"^here: no memory is left on the device \(.*lower capacity"
        ) as caught,
        named_errors("here"),
    ):
        ERRORS[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ValueError, FloatingPointError])
def test_a_place_is_put_before_other_errors(kind):
    with pytest.raises(kind, match=r"^there: too small$"), named_errors("there"):
        raise kind("too small")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), KeyError("x"), AssertionError()])
def test_bugs_pass_as_they_are(error):
    with pytest.raises(type(error)) as caught, named_errors("there"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["verify", "commit", "probe", "base_signals", "head_signals"])
def test_out_of_memory_ends_the_text_and_the_next_works(make, monkeypatch, place, error):
    env, fresh = make(probe="union"), make(probe="union")
    fresh.reset(**PROMPT)
    expected = play(fresh)[0]["text"]
    for call in (1, 3):
        env.reset(**PROMPT)
        with monkeypatch.context() as patch:
            patch.setattr(env.decoder, place, failing(getattr(env.decoder, place), ERRORS[error], call))
            info, rewards = play(env)
        assert info["finish_reason"].startswith(
            f"error: prompt 't3', step {call}, tree 'tree-6x3': no memory"
        )
        # Tokens that were committed before the failure count; a step without any still took its time.
        assert info["tokens"] == (0 if place in ("verify", "commit") else info["accept_length"] + 1)
        assert info["text"] == env.engine.decode(env.decoder.tokens)
        assert expected.startswith(info["text"])
        assert info["total_tokens"] == len(env.decoder.tokens) < len(expected.split())
        assert rewards == pytest.approx(info["total_tokens"] / info["total_seconds"])
        assert env.last_step == (info["tokens"], info["seconds"])
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
        env.reset(**PROMPT)
        assert play(env)[0]["text"] == expected


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["start", "probe", "base_signals"])
def test_out_of_memory_at_a_reset_is_clear_and_the_next_works(make, monkeypatch, place, error):
    env = make(probe="chain")
    env.reset(seed=0)
    env.step(1)
    with monkeypatch.context() as patch:
        patch.setattr(env.decoder, place, failing(getattr(env.decoder, place), ERRORS[error], 1))
        with pytest.raises(MemoryError, match=r"^prompt 't3': no memory is left on the device"):
            env.reset(**PROMPT)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(1)
    fresh = make(probe="chain")
    for each in (env, fresh):
        each.reset(**PROMPT)
    assert play(env)[0]["text"] == play(fresh)[0]["text"]


def test_a_session_that_could_not_be_allocated_is_made_at_the_next_reset(make, monkeypatch):
    env = make()
    with monkeypatch.context() as patch:
        patch.setattr(env.engine.backbone, "new_cache", lambda capacity: torch.empty(10**14))
        with pytest.raises(MemoryError, match="no memory is left"):
            env.reset(**PROMPT)
    env.reset(**PROMPT)
    assert play(env)[0]["finish_reason"] in ("eos", "length")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["_load_base", "from_pretrained"])
def test_a_model_that_does_not_fit_is_named_and_may_be_loaded_later(
    make, tiny_files, monkeypatch, place, error
):
    # A device of its own: nobody else has loaded the model there.
    env = make(device="cpu:0")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_engines", {})
        patch.setattr(engine, "_bases", {})
        patch.setattr(engine, place, lambda *_: ERRORS[error]())
        name = re.escape(repr(tiny_files.model))
        with pytest.raises(MemoryError, match=rf"^loading the model {name}: no memory .*smaller model"):
            env.reset(**PROMPT)
        patch.undo()
    env.reset(**PROMPT)
    assert play(env)[0]["finish_reason"] in ("eos", "length")


@pytest.mark.parametrize("place", ["verify", "probe"])
def test_a_bug_in_a_step_is_not_hidden(make, monkeypatch, place):
    env = make(probe="chain")
    env.reset(seed=0)
    bug = RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")
    with monkeypatch.context() as patch:
        patch.setattr(env.decoder, place, failing(None, lambda: _raise(bug), 1))
        with pytest.raises(RuntimeError, match="must match") as caught:
            env.step(1)
    assert caught.value is bug
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)
    env.reset(seed=0)
    env.step(1)


@pytest.mark.parametrize("call", [1, 2, 4])
def test_logits_of_nan_name_the_step_and_the_next_text_works(make, monkeypatch, call):
    env, fresh = make(), make()
    fresh.reset(**PROMPT)
    expected = play(fresh, 0)[0]["text"]
    backbone = env.engine.backbone
    with monkeypatch.context() as patch:
        shape = torch.full((1, backbone.config.vocab_size), np.nan)
        patch.setattr(backbone, "logits", failing(backbone.logits, lambda: shape, call))
        # The first call is the prefill's.
        if call > 1:
            env.reset(**PROMPT)
        name = "prompt 't3': " if call == 1 else f"prompt 't3', step {call - 1}, tree 'autoregressive': "
        with pytest.raises(FloatingPointError, match=f"^{name}.*NaN"):
            env.reset(**PROMPT) if call == 1 else play(env, 0)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
    env.reset(**PROMPT)
    assert play(env, 0)[0]["text"] == expected


@pytest.mark.parametrize("probe", ["none", "chain", "union"])
def test_draft_heads_of_nan_are_named_too(make, monkeypatch, probe):
    env, fresh = make(probe=probe), make(probe=probe)
    fresh.reset(**PROMPT)
    expected = play(fresh)[0]["text"]
    heads = env.engine.heads
    logits = heads.logits
    with monkeypatch.context() as patch:
        patch.setattr(heads, "logits", lambda *args: logits(*args) * np.nan)
        # A probe drafts at the reset.
        begins = probe == "none"
        if begins:
            env.reset(**PROMPT)
        name = "prompt 't3', step 1, tree '.*': " if begins else "prompt 't3': "
        with pytest.raises(FloatingPointError, match=f"^{name}the draft heads' logits are NaN"):
            env.step(5) if begins else env.reset(**PROMPT)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(0)
    env.reset(**PROMPT)
    assert play(env)[0]["text"] == expected


def test_a_refused_prompt_ends_the_text_before_it(make):
    env = make(capacity=68)
    env.reset(options={"prompt_id": "t0"})
    with pytest.raises(ValueError, match="prompt 't5': a prompt of 6 tokens"):
        env.reset(options={"prompt_id": "t5"})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
