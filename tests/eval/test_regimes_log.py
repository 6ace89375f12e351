import json

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.features import FeatureSet
from entmtp_env.replay.shipped import load_recording
from entmtp_env.trees import default_bank
from eval.interleave import EvaluationError
from eval.regimes_log import log_steps
from tests.eval.decoder_env import ENV_ID
from tests.recordings import accepted, random_recording, record_tiny

TREE = "tree-4x2"
COSTS = "analytic:base=1"


def replay_env(recording, folder, **changes):
    recording.save(folder / "r.npz")
    return gymnasium.make("EntMTP/Replay-v0", recording=str(folder / "r.npz"), costs=COSTS, **changes)


def test_accept_lengths_are_those_of_a_walk_by_hand(tmp_path):
    recording = random_recording(np.random.default_rng(0), texts=9, depth=4, longest=40, cap=40)
    seeds = {text.prompt_id: 0 for text in reversed(recording.texts)}
    log = log_steps(replay_env(recording, tmp_path), TREE, seeds)
    assert log.prompt_ids == tuple(seeds)
    tree = default_bank()[default_bank().index(TREE)]
    for number, text in enumerate(reversed(recording.texts)):
        i = len(recording.texts) - 1 - number
        row, end, lengths, entropies = recording.offsets[i], recording.offsets[i + 1] - 1, [], []
        while row < end:
            lengths.append(accepted(tree, recording.ranks[row].tolist()))
            entropies.append(recording.base_entropy[row])
            row += lengths[-1] + 1
        mine = log.generations == number
        assert log.texts[number] == text.text
        assert log.accepted[mine].tolist() == lengths[1:-1]
        names = [feature.name for feature in log.features]
        # What was seen before the step, not behind it.
        assert log.values[mine, names.index("base_entropy")] == pytest.approx(entropies[1:-1])
        assert log.values[mine, names.index("accept_last")] * 4 == pytest.approx(lengths[:-2])


def test_a_recording_and_the_live_decoder_tell_the_same(tiny_files, tmp_path):
    cap = tiny_files.kwargs["max_new_tokens"]
    recording = record_tiny(tiny_files, cap)
    seeds = {text.prompt_id: 0 for text in recording.texts}
    replayed = log_steps(replay_env(recording, tmp_path, capacity=256), TREE, seeds)
    live = log_steps(gymnasium.make("EntMTP/Live-v0", **tiny_files.kwargs), TREE, seeds)
    assert len(live.accepted) > 20
    assert (live.accepted == replayed.accepted).all()
    assert (live.generations == replayed.generations).all()
    assert live.values == pytest.approx(replayed.values, abs=1e-4)
    assert live.texts == replayed.texts


def test_a_line_has_every_feature():
    env = gymnasium.make("EntMTP/Replay-v0", recording="chat", costs=COSTS, probe="chain")
    ids = [text.prompt_id for text in load_recording("chat").texts[:2]]
    log = log_steps(env, "hydra-default", dict.fromkeys(ids, 0))
    lines = [json.loads(line) for line in log.lines("chat")]
    features = FeatureSet(4, [len(tree) for tree in default_bank()], "all", "chain").names
    assert list(lines[0]) == ["task", "prompt_id", "step", "accept_length", *features]
    assert [line["accept_length"] for line in lines] == log.accepted.tolist()
    for number, prompt_id in enumerate(ids):
        count = int((log.generations == number).sum())
        assert [line["step"] for line in lines if line["prompt_id"] == prompt_id] == [*range(1, count + 1)]
    values = np.array([[line[name] for name in features] for line in lines])
    assert values == pytest.approx(log.values, rel=1e-4)


def test_progress_is_told_once_a_text(tmp_path):
    recording = random_recording(np.random.default_rng(0), texts=4, depth=4, longest=40, cap=40)
    told = []
    ids = [text.prompt_id for text in recording.texts]
    log_steps(replay_env(recording, tmp_path), TREE, dict.fromkeys(ids, 0), lambda: told.append(1))
    assert len(told) == 4


def test_texts_without_a_step_between_first_and_last_are_refused(tmp_path):
    recording = random_recording(np.random.default_rng(0), texts=3, depth=4, longest=2, cap=2)
    ids = [text.prompt_id for text in recording.texts]
    with pytest.raises(ValueError, match="no text has three steps with tree-4x2; take longer texts"):
        log_steps(replay_env(recording, tmp_path), TREE, dict.fromkeys(ids, 0))


def test_a_text_that_ends_in_an_error_is_named(decoder, monkeypatch, prompt_file):
    monkeypatch.setattr(decoder, "broken_on", "q1")
    names = ("acceptance", "probe", "features", "dtype", "device", "model", "heads")
    env = gymnasium.make(
        ENV_ID,
        bank="default",
        prompts=prompt_file(3),
        max_new_tokens=24,
        capacity=64,
        **dict.fromkeys(names, ""),
    )
    with pytest.raises(EvaluationError, match="q1"):
        log_steps(env, TREE, {"q0": 0, "q1": 1})
