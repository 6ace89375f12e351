import itertools

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.watch import SCORES, common_length, text_pieces, watch_episode
from policies import make_policy
from tests.fake_env import FakeEnv


@pytest.mark.parametrize("features", ["all", "base"])
def test_details_are_those_of_stepping_the_environment(tiny_files, features):
    settings = tiny_files.kwargs | {"features": features}
    env = gymnasium.make("EntMTP/Live-v0", **settings)
    episode, details = watch_episode(env, make_policy("static:tree-4x2", env), "t3", 5)
    assert len(details) == len(episode.steps) > 1
    again = gymnasium.make("EntMTP/Live-v0", **settings)
    observation, _ = again.reset(seed=5, options={"prompt_id": "t3"})
    names, tokens = list(again.unwrapped.feature_names), again.unwrapped.decoder.tokens
    observed = [name for name in SCORES if name in names]
    assert len(observed) == (len(SCORES) if features == "all" else 2)
    for step, detail in zip(episode.steps, details, strict=True):
        scores = {name: observation[names.index(name)] for name in observed}
        assert detail.scores == pytest.approx(scores, abs=1e-5)
        before = len(tokens)
        observation, *_ = again.step(step.action)
        assert list(detail.token_ids) == tokens[before:]
    assert "".join(detail.text for detail in details) == episode.text


def test_an_environment_without_a_decoder_tells_its_scores_only():
    env = FakeEnv()
    episode, details = watch_episode(env, make_policy("random", env), "p", 0)
    assert len(details) == len(episode.steps)
    assert {detail.token_ids for detail in details} == {()}
    observation, _ = env.reset(seed=0, options={"prompt_id": "p"})
    assert details[0].scores["base_top1"] == pytest.approx(float(observation[0]), abs=1e-5)


def decode(ids):
    return bytes(ids).decode(errors="replace")


@given(st.text(min_size=1, max_size=12), st.data())
def test_pieces_join_to_the_text_and_cut_no_character(text, data):
    ids = list(text.encode())
    cuts = data.draw(st.sets(st.integers(1, len(ids))))
    ends = [0, *sorted(cuts - {len(ids)}), len(ids)]
    steps = [ids[a:b] for a, b in itertools.pairwise(ends)]
    pieces = text_pieces(decode, steps, text)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        done = 0
        for end, piece in zip(ends[1:], pieces, strict=True):
            done += len(piece)
            # All characters whose last byte is there, and no others.
            assert text[:done] == bytes(ids[:end]).decode(errors="ignore")


@given(st.text("ab"), st.text("ab"))
def test_common_length(one, other):
    n = common_length(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]


def test_scores_are_plain_numbers():
    env = FakeEnv()
    _, details = watch_episode(env, make_policy("autoregressive", env), "p", 0)
    assert not any(isinstance(value, np.generic) for detail in details for value in detail.scores.values())
