"""The environments see the same on decoders whose steps are graphs, captured by direct calls here."""

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.stages import Stages

STAGES = Stages("tiny", DraftShape((1, 2, 2, 2), (4, 3, 2, 2)), (0, 1, 2, 4, 8, 16))
RULES = ("greedy", "sample:temperature=0.8", "typical:temperature=0.7,epsilon=0.2,alpha=0.6")


@pytest.fixture
def pair(tiny_files, tmp_path):
    STAGES.save(tmp_path / "stages.json")

    def build(env_id, **changes):
        own = {"stages": str(tmp_path / "stages.json")} if "Staged" in env_id else {}
        settings = tiny_files.kwargs | own | changes
        return [gymnasium.make(env_id, **settings | {"device": device}) for device in ("cpu", "cpu-graphs")]

    return build


def assert_same_texts(eager, captured):
    for seed, prompt in enumerate(("t0", "t3", "t5")):
        reset = {"seed": 5, "options": {"prompt_id": prompt}}
        (expected, info), (seen, _) = eager.reset(**reset), captured.reset(**reset)
        rng, done = np.random.default_rng(seed), False
        while not done:
            np.testing.assert_allclose(seen, expected, atol=1e-5)
            mask = info.get("action_mask", np.ones(eager.action_space.n))
            action = rng.choice(mask.nonzero()[0])
            expected, _, *ends, info = eager.step(action)
            seen, _, *own_ends, own = captured.step(action)
            timed = {key for key in info if "seconds" in key or "per_second" in key}
            assert own.keys() == info.keys()
            assert own_ends == ends
            assert all(np.array_equal(own[key], info[key]) for key in info.keys() - timed)
            assert all(own[key] >= 0 for key in timed if own[key] is not None)
            done = any(ends)


@pytest.mark.parametrize("acceptance", RULES)
@pytest.mark.parametrize("probe", ["none", "first", "union"])
def test_live(pair, acceptance, probe):
    eager, captured = pair("EntMTP/Live-v0", acceptance=acceptance, probe=probe)
    captured.unwrapped.warm_up()
    assert_same_texts(eager, captured)
    assert isinstance(captured.unwrapped.decoder, GraphDecoder)
    # Behind a probe steps are eager ones, and a result says so.
    assert captured.unwrapped.manifest["device"] == ("cpu-graphs" if probe == "none" else "cpu")
    assert captured.unwrapped.engine.backbone is eager.unwrapped.engine.backbone


@pytest.mark.parametrize("acceptance", RULES)
def test_staged(pair, acceptance):
    eager, captured = pair("EntMTP/Staged-v0", acceptance=acceptance)
    captured.unwrapped.warm_up()
    assert_same_texts(eager, captured)
    assert isinstance(captured.unwrapped.decoder, GraphDecoder)


def test_prompt_lookup_has_no_graphs_and_says_so(pair):
    eager, captured = pair("EntMTP/PromptLookup-v0")
    assert_same_texts(eager, captured)
    assert captured.unwrapped.manifest["device"] == eager.unwrapped.manifest["device"] == "cpu"
