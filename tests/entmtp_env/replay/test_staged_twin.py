"""The staged replay against the staged live environment, decision for decision, with the tiny model."""

import json
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from entmtp_env.decoding import save_heads
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import Stages
from entmtp_env.engine import get_engine
from entmtp_env.prompt_queue import draw_order
from entmtp_env.prompts import load_prompts
from entmtp_env.replay.recorder import text_seed
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.staged_recorder import record_stages
from entmtp_env.replay.staged_tables import fit_stages
from tests.conftest import TinyFiles
from tests.recordings import COSTS, record_tiny
from tests.tiny import save_tiny_model, tiny_backbone, tiny_heads, tiny_model

# So small a vocabulary that the drafts hold the next token.
VOCAB, CAP, PROMPTS, SEED = 11, 20, 5, 7
RULES = ("greedy", "sample:temperature=0.8")
SHAPE, BUDGETS = DraftShape((1, 6, 5, 2), (9, 8, 6, 7)), (0, 1, 2, 5, 9, 30, 57, 80)


@pytest.fixture(scope="module", params=["hydra-prefix", "medusa"])
def files(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("small-vocabulary")
    save_tiny_model(folder / "model", model=tiny_model(1, vocab_size=VOCAB))
    backbone = tiny_backbone(1, vocab_size=VOCAB)
    heads = tiny_heads(backbone, request.param, draft_vocab=VOCAB - 1, pack=False)
    save_heads(heads, folder / "heads.safetensors")
    prompts = [
        {"id": f"t{i}", "prompt": " ".join(f"w{(3 * i + j) % 8}" for j in range(1 + i))}
        for i in range(PROMPTS)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return TinyFiles(*(str(folder / name) for name in ("model", "heads.safetensors", "prompts.jsonl")))


def engine_and_prompts(files):
    engine = get_engine(files.model, files.heads, "float32", "cpu")
    return engine, {prompt.prompt_id: engine.encode(prompt) for prompt in load_prompts(files.prompts)}


@pytest.fixture(scope="module")
def recorded(files, tmp_path_factory):
    """Recording, drafts and calibrated stages under each rule, with the seeds that Live draws with SEED."""
    folder = tmp_path_factory.mktemp("recordings")
    order = draw_order(np.random.default_rng(SEED), PROMPTS)
    seeds = {f"t{index}": seed for index, seed in zip(*order, strict=True)}
    settings = {}
    for number, rule in enumerate(RULES):
        recording = record_tiny(files, CAP, rule, seeds)
        engine, prompts = engine_and_prompts(files)
        drafts = record_stages(engine, recording, prompts, SHAPE)
        parts = {
            "recording": recording,
            "drafts": drafts,
            "stages": fit_stages("fitted", BUDGETS, [(recording, drafts)]),
            "plain": Stages("plain", SHAPE, BUDGETS),
        }
        for name, part in parts.items():
            part.save(folder / f"{name}-{number}")
        settings[rule] = {name: str(folder / f"{name}-{number}") for name in parts}
        (folder / f"recording-{number}").rename(folder / f"recording-{number}.npz")
        settings[rule]["recording"] += ".npz"
    return settings


@pytest.fixture(scope="module")
def twins(files, recorded):
    """The same environment live and replayed."""

    def build(rule, stages="stages", **settings):
        own = recorded[rule]
        settings = {"max_new_tokens": CAP, "capacity": 160, "stages": own[stages]} | settings
        replay = gymnasium.make(
            "EntMTP/StagedReplay-v0",
            recording=own["recording"],
            drafts=own["drafts"],
            costs=COSTS,
            **settings,
        )
        live = gymnasium.make("EntMTP/Staged-v0", **(files.kwargs | settings), acceptance=rule)
        return live.unwrapped, replay.unwrapped

    return build


def comparable(info):
    return {
        key: value.tolist() if key == "action_mask" else value
        for key, value in info.items()
        if not (key.endswith("seconds") or key == "text")
    }


def play_both(live, replay, decide, cut=False):
    """Play every prompt once in both, compare every decision, and return the infos."""
    infos = []
    for episode in range(PROMPTS):
        seed = SEED if episode == 0 else None
        (expected, live_info), (seen, info) = live.reset(seed=seed), replay.reset(seed=seed)
        ends, live_ends = [False, False], [False, False]
        while True:
            np.testing.assert_allclose(seen, expected, atol=1e-5)
            assert comparable(info) == comparable(live_info)
            assert {k: type(v) for k, v in info.items()} == {k: type(v) for k, v in live_info.items()}
            assert info["text"].startswith(live_info["text"]) if cut else info["text"] == live_info["text"]
            assert (ends, live.place) == (live_ends, replay.place)
            np.testing.assert_array_equal(live.action_masks(), replay.action_masks())
            if any(ends):
                break
            action = decide(info["action_mask"])
            expected, _, *live_ends, live_info = live.step(action)
            seen, _, *ends, info = replay.step(action)
            infos.append(info)
    return infos


def often_deeper(rng):
    return lambda mask: 0 if mask[0] and rng.random() < 0.7 else rng.choice(mask.nonzero()[0])


@pytest.mark.parametrize("stages", ["stages", "plain"])
@pytest.mark.parametrize("rule", RULES)
def test_random_decisions_replay_as_they_decode(twins, rule, stages):
    live, replay = twins(rule, stages)
    assert replay.observation_space == live.observation_space
    assert replay.action_space == live.action_space
    rng = np.random.default_rng(0)
    infos = []
    for _ in range(4):
        infos += play_both(live, replay, often_deeper(rng))
    assert {0, 1, 2} <= {info["accept_length"] for info in infos}
    assert {"eos", "length"} <= {info["finish_reason"] for info in infos}


@pytest.mark.parametrize("budget", range(1, len(BUDGETS)))
def test_every_budget_after_all_depths_replays_as_it_decodes(twins, budget):
    live, replay = twins("greedy")
    infos = play_both(live, replay, lambda mask: 0 if mask[0] else 1 + budget)
    assert {info["tree"] for info in infos} == {"", f"verify-{BUDGETS[budget]}"}


@pytest.mark.parametrize(
    ("shorter", "reason"), [({"max_new_tokens": 9}, "length"), ({"capacity": 92}, "context")]
)
def test_texts_that_end_before_the_recorded_ones(twins, shorter, reason):
    live, replay = twins("greedy", **shorter)
    rng = np.random.default_rng(1)
    infos = play_both(live, replay, lambda mask: rng.choice(mask.nonzero()[0]), cut=True)
    assert reason in {info["finish_reason"] for info in infos}


def test_drafts_are_made_with_what_the_recording_was_made_with(files, recorded):
    engine, prompts = engine_and_prompts(files)
    recording = Recording.load(recorded["greedy"]["recording"])
    with pytest.raises(ValueError, match=r"prompt 't0' of .* tokens is not among the prompts given"):
        record_stages(engine, recording, {}, SHAPE)
    seeds = {prompt_id: text_seed(3, prompt_id, tokens) for prompt_id, tokens in prompts.items()}
    texts = tuple(replace(text, seed=seeds[text.prompt_id]) for text in recording.texts)
    known = replace(recording, texts=texts, manifest=recording.manifest | {"seed": 3})
    record_stages(engine, known, prompts, SHAPE)
    reversed_ = prompts | {"t2": prompts["t2"][::-1]}
    assert reversed_ != prompts
    with pytest.raises(ValueError, match=r"prompt 't2' of .* tokens is not among the prompts given"):
        record_stages(engine, known, reversed_, SHAPE)
    recording.manifest["dtype"] = "bfloat16"
    with pytest.raises(ValueError, match="has dtype 'bfloat16', the engine 'float32'"):
        record_stages(engine, recording, prompts, SHAPE)
