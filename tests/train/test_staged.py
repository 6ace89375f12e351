import dataclasses
import math

import gymnasium
import numpy as np
import pytest
import torch

import entmtp_env  # noqa: F401
from entmtp_env.replay.staged_oracle import solve_staged
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from entmtp_env.sealed_npz import load_sealed
from policies import PolicyFile, run_episode
from policies.staged import StagedThreshold
from policies.staged_learned import StagedLearned
from tests.staged import STAGES, measured_costs, staged_settings
from tests.train.told_bit import told_bit_stages
from train.staged import StagedTraining, train_staged
from train.staged_lessons import examples
from train.student import expected_cost_of_stages
from train.visits import visit


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A training on three quarters of the texts; a threshold policy to compare with."""
    folder = tmp_path_factory.mktemp("staged")
    config = StagedTraining(
        out=folder / "policy.npz",
        held_out=(),
        thresholds=folder / "thresholds.json",
        rounds=1,
        epochs=30,
        **told_bit_stages(folder, texts=40),
    )
    PolicyFile.of(StagedThreshold(config.environments(*config.recordings))).save(config.thresholds)
    train_staged(config)
    return config


def test_a_bit_that_tells_how_deep_to_draft_is_found(trained):
    envs = trained.environments(*trained.recordings)
    oracle = solve_staged(envs)
    env = gymnasium.make(
        "EntMTP/StagedReplay-v0",
        recording=trained.recordings,
        drafts=trained.drafts,
        stages=trained.stages,
        costs=trained.costs,
    )
    policy = StagedLearned.load(trained.out, env)
    episodes = [run_episode(env, policy, text.prompt_id, seed=0) for text in envs.prompts]
    seconds = sum(episode.seconds for episode in episodes)
    assert oracle.static_seconds(*oracle.best_static).sum() > 1.35 * oracle.seconds.sum()
    assert seconds < 1.1 * oracle.seconds.sum()


def test_the_file_tells_how_it_was_made(trained):
    record = load_sealed(trained.out, "policy")[0]["calibration"]
    rows = {row["policy"]: row for row in record["held_out"]}
    assert {"staged-learned", "staged-threshold", "oracle"} < rows.keys()
    assert rows["staged-learned"]["gap"] > 0.75
    assert (rows["oracle"]["regret"], rows["oracle"]["gap"]) == (1, 1)
    assert record["texts"] == 30
    assert record["settings"]["rounds"] == 1


def test_a_cache_that_would_cut_texts_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match=r"do not fit into 40 KV rows.*raise the capacity"):
        train_staged(dataclasses.replace(trained, out=tmp_path / "policy.npz", capacity=40))


def test_settings_that_train_nothing(trained):
    with pytest.raises(FileExistsError, match="add --overwrite"):
        train_staged(trained)
    for changed, message in (
        ({"drafts": ()}, "recordings and drafts"),
        ({"epochs": 0}, "epochs=0"),
        ({"rounds": -1}, "rounds=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(trained, **changed)


def test_examples_are_what_the_environment_shows_and_what_its_steps_cost(tmp_path):
    """Of every action at every depth of random steps, stepping a single environment."""
    settings = staged_settings(tmp_path, seed=5, texts=4, longest=20, cap=20)
    settings["costs"] = measured_costs(tmp_path)
    envs = StagedReplayVectorEnv(4, **settings)
    single = gymnasium.make("EntMTP/StagedReplay-v0", **settings).unwrapped
    script = np.random.default_rng(0).integers(len(STAGES), size=400)
    visits = visit(envs, Scripted(script))
    observations, costs = examples(envs, 50.0, visits, true=1.0)
    taken = 0
    for text in envs.prompts:
        observation, info = single.reset(options={"prompt_id": text.prompt_id})
        done, count = False, 0
        while not done:
            if single._depth == 0:
                mine = np.flatnonzero(
                    (visits.rows[visits.observations[:, single.feature_names.index("stage")] == 0])
                    == single._row
                )
                base = costs[mine[0]]
            np.testing.assert_allclose(observations[mine[0], single._depth], observation, atol=1e-6)
            np.testing.assert_array_equal(~np.isnan(base[single._depth]), single.action_masks())
            depth, context = single._depth, int(single.tables.contexts[single._row])
            action = single.stages.settle(int(script[count]), depth)
            observation, _, terminated, truncated, info = single.step(action)
            if action:
                plain = single.costs.verify_seconds[0, context] - 1 / 50.0
                worth = info["seconds"] - info["tokens"] / 50.0
                assert base[depth, action] - base[0, 1] == pytest.approx(worth - plain)
                taken += 1
            else:
                assert base[depth, 0] == pytest.approx(info["seconds"])
            done, count = terminated or truncated, count + 1
    assert taken > 20


class Scripted:
    """The same actions for all texts, one after the other."""

    def __init__(self, script):
        self.script = script

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        step = 0 if state is None else int(state[0][0])
        return np.full(len(observation), self.script[step]), (np.array([step + 1]),)


def test_the_expected_cost_of_a_chain_is_the_sum_over_all_ways_through_it():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 4, generator=generator)
    costs = torch.rand(5, 3, 4, generator=generator)
    costs[:, 2, 0] = torch.nan
    costs[:, 0, 3] = torch.nan
    chances = torch.where(costs.isnan(), -torch.inf, logits).softmax(2).numpy()
    expected = 0.0
    for row in range(5):
        reach, spent = 1.0, 0.0
        for stage in range(3):
            for action in range(1, 4):
                if not math.isnan(costs[row, stage, action]):
                    expected += (
                        reach * chances[row, stage, action] * (spent + float(costs[row, stage, action]))
                    )
            if stage < 2:
                reach *= chances[row, stage, 0]
                spent += float(costs[row, stage, 0])
    assert float(expected_cost_of_stages(logits, costs)) == pytest.approx(expected / 5, rel=1e-5)
