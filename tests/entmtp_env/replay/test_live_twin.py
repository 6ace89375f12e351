"""The replay against the live environment, step for step, with the tiny model in float32."""

import json

import gymnasium
import numpy as np
import pytest

from entmtp_env.decoding import save_heads
from entmtp_env.prompt_queue import draw_order
from entmtp_env.trees import default_bank
from policies import make_policy
from tests.conftest import TinyFiles
from tests.recordings import COSTS, record_tiny
from tests.tiny import save_tiny_model, tiny_backbone, tiny_heads, tiny_model

ID = "EntMTP/Replay-v0"
# So small a vocabulary that wide trees hold the next token.
VOCAB, CAP, PROMPTS, SEED = 11, 20, 5, 7
RULES = ("greedy", "sample:temperature=0.8")
PROBES = ("none", "first", "chain", "union")
SWITCHING = ("random", "threshold:score=base_top1,on=0.6", "ladder:edges=0.3|0.4|0.5")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small-vocabulary")
    save_tiny_model(folder / "model", model=tiny_model(1, vocab_size=VOCAB))
    heads = tiny_heads(tiny_backbone(1, vocab_size=VOCAB), draft_vocab=VOCAB - 1, pack=False)
    save_heads(heads, folder / "heads.safetensors")
    prompts = [
        {"id": f"t{i}", "prompt": " ".join(f"w{(3 * i + j) % 8}" for j in range(1 + i))}
        for i in range(PROMPTS)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return TinyFiles(*(str(folder / name) for name in ("model", "heads.safetensors", "prompts.jsonl")))


@pytest.fixture(scope="module")
def recorded(files, tmp_path_factory):
    """A recording of the tiny model under each rule, with the seeds that Live draws when reset with SEED."""
    folder = tmp_path_factory.mktemp("recordings")
    order = draw_order(np.random.default_rng(SEED), PROMPTS)
    seeds = {f"t{index}": seed for index, seed in zip(*order, strict=True)}
    paths = {}
    for number, rule in enumerate(RULES):
        recording = record_tiny(files, CAP, rule, seeds, default_bank().union)
        paths[rule] = str(folder / f"{number}.npz")
        recording.save(paths[rule])
    return paths


@pytest.fixture(scope="module")
def twins(files, recorded):
    """The same environment live and replayed."""

    def build(rule="greedy", **settings):
        settings = {"max_new_tokens": CAP, "capacity": 128} | settings
        replay = gymnasium.make(ID, recording=recorded[rule], costs=COSTS, **settings)
        live = gymnasium.make("EntMTP/Live-v0", **(files.kwargs | settings), acceptance=rule)
        return live.unwrapped, replay.unwrapped

    return build


def same_knowledge(live, replay, expected, seen):
    """Whether two observations are equal; tree values were rounded to float16."""
    rounded = np.char.startswith(replay.feature_names, "tree_value")
    np.testing.assert_allclose(seen[~rounded], expected[~rounded], atol=1e-5)
    np.testing.assert_allclose(seen[rounded], expected[rounded], rtol=2**-10, atol=1e-5)
    assert replay.observation_space == live.observation_space
    assert replay.observation_space.contains(seen)
    assert live.place == replay.place


def same_info(expected, seen, cut):
    """Compare all but the clock, and of a text that was cut only the beginning."""

    def comparable(info):
        return {key: value for key, value in info.items() if not (key.endswith("seconds") or key == "text")}

    assert comparable(seen) == comparable(expected)
    assert seen["text"].startswith(expected["text"]) if cut else seen["text"] == expected["text"]
    assert {key: type(value) for key, value in seen.items()} == {
        key: type(value) for key, value in expected.items()
    }


def play_both(live, replay, policy, cut=False):
    """Play every prompt once in both, compare each step, and return the infos of the steps."""
    infos = []
    for episode in range(PROMPTS):
        seed = SEED if episode == 0 else None
        (expected, live_info), (seen, info) = live.reset(seed=seed), replay.reset(seed=seed)
        state, done = None, False
        same_info(live_info, info, cut)
        while not done:
            same_knowledge(live, replay, expected, seen)
            action, state = policy.predict(seen, state=state, episode_start=None)
            expected, _, *live_ends, live_info = live.step(action)
            seen, _, *ends, info = replay.step(action)
            same_info(live_info, info, cut)
            assert ends == live_ends
            infos.append(info)
            done = any(ends)
        same_knowledge(live, replay, expected, seen)
    return infos


@pytest.mark.parametrize("rule", RULES)
def test_every_tree_replays_as_it_decodes(twins, rule):
    live, replay = twins(rule)
    seen = set()
    for name in replay.bank.names:
        infos = play_both(live, replay, make_policy(f"static:{name}", replay))
        seen |= {info["accept_length"] for info in infos}
    assert {0, 1, 2} <= seen


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("rule", RULES)
def test_switching_replays_as_it_decodes(twins, rule, probe):
    live, replay = twins(rule, probe=probe)
    for spec in SWITCHING:
        infos = play_both(live, replay, make_policy(spec, replay))
        assert len({info["tree"] for info in infos}) > 1
        assert {"eos", "length"} <= {info["finish_reason"] for info in infos}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("shorter", "reason"),
    [({"max_new_tokens": 9}, "length"), ({"max_new_tokens": 1}, "length"), ({"capacity": 75}, "context")],
)
def test_texts_that_end_before_the_recorded_ones(twins, rule, shorter, reason):
    live, replay = twins(rule, probe="union", **shorter)
    infos = play_both(live, replay, make_policy("random:seed=2", replay), cut=True)
    assert reason in {info["finish_reason"] for info in infos}


def test_prompts_come_in_the_order_of_the_live_environment(twins):
    live, replay = twins(max_new_tokens=1)

    def order(env):
        return [env.reset(seed=3 if i == 0 else None)[1]["prompt_id"] for i in range(3 * PROMPTS)]

    assert order(live) == order(replay)
    assert sorted(order(replay)[:PROMPTS]) == [f"t{i}" for i in range(PROMPTS)]
