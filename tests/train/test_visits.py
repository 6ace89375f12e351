from types import SimpleNamespace

import numpy as np
import pytest

from entmtp_env.replay.env import ReplayEnv
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.static import Static
from tests.recordings import random_recording, saved_settings
from train.visits import Visits, visit


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    recording = random_recording(np.random.default_rng(3), texts=5, longest=30, cap=30)
    return saved_settings(tmp_path_factory.mktemp("visits"), recording)


def test_every_decision_of_every_text_is_noted_once(settings):
    envs, single = ReplayVectorEnv(5, **settings), ReplayEnv(**settings)
    visits = visit(envs, Static(envs, "wide"))
    for text, prompt in enumerate(single.prompts):
        observation, _ = single.reset(options={"prompt_id": prompt.prompt_id})
        seen, rows, done = [], [], False
        while not done:
            seen.append(observation)
            rows.append(single.tables.starts[text] + single.place[1])
            observation, _, terminated, truncated, _ = single.step(single.bank.index("wide"))
            done = terminated or truncated
        own = visits.of(np.array([text]))
        assert own.rows.tolist() == rows
        np.testing.assert_allclose(own.observations, seen, rtol=1e-5)
    assert len(Visits.join([visits, visits]).rows) == 2 * len(visits.rows)


def test_a_policy_is_told_where_texts_begin(settings):
    envs, seen = ReplayVectorEnv(5, **settings), []

    def predict(observations, state, episode_start):
        seen.append(episode_start.tolist())
        return np.zeros(5, dtype=np.int64), None

    visit(envs, SimpleNamespace(predict=predict))
    lengths = envs.tables.recording.lengths.tolist()
    assert seen == [[step == 0 or step > length for length in lengths] for step in range(max(lengths))]
    assert len(set(lengths)) > 1


def test_exploring_takes_random_trees(settings):
    envs = ReplayVectorEnv(5, **settings)
    policy = Static(envs, "autoregressive")
    alone = visit(envs, policy)
    explored = visit(envs, policy, 1.0, np.random.default_rng(0))
    # Without drafts every row is visited; with them, some are passed over.
    assert len(alone.rows) == envs.tables.recording.lengths.sum()
    assert set(explored.rows) < set(alone.rows)
