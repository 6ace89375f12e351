import dataclasses
import json

import pytest

from eval.compare import Compare
from policies import Episode, StepRecord
from tests.eval.decoder_env import ENV_ID, DecoderEnv


@pytest.fixture
def decoder(monkeypatch):
    """The fake decoder's class, with an empty log and no fault."""
    monkeypatch.setattr(DecoderEnv, "log", [])
    return DecoderEnv


@pytest.fixture
def prompt_file(tmp_path):
    """Builds a prompt set of ``n`` prompts, ``q0`` and on."""

    def build(n=6, name="prompts.jsonl"):
        path = tmp_path / name
        path.write_text(
            "".join(json.dumps({"id": f"q{i}", "prompt": f"Question {i}"}) + "\n" for i in range(n))
        )
        return str(path)

    return build


@pytest.fixture
def config(decoder, prompt_file, tmp_path):
    """A small comparison on the fake decoder."""
    base = Compare(
        policies=("threshold", "random"),
        prompts=(prompt_file(),),
        max_new_tokens=24,
        bootstrap_samples=200,
        out=tmp_path / "results",
        env_id=ENV_ID,
        dtype="float32",
    )
    return lambda **changes: dataclasses.replace(base, **changes)


@pytest.fixture
def episode():
    """Builds an episode from ``(action, tokens, seconds)`` per step."""

    def build(prompt_id, *steps, policy_seconds=0.0, prefill=0.0, text=""):
        records = [
            StepRecord(action, f"tree{action}", tokens - 1, tokens, s, 0.25 * s, 0.5 * s, policy_seconds, 0.0)
            for action, tokens, s in steps
        ]
        return Episode(prompt_id, tuple(records), prefill, "length", text)

    return build
