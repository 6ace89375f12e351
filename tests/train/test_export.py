import dataclasses
import json

import gymnasium
import numpy as np
import pytest

from entmtp_env.replay.env import ReplayEnv
from policies import make_policy
from tests.recordings import random_recording
from train.export import Export, export

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

COSTS = "analytic:base=0.02,node=0.0005,depth=0.001"
NUMBERS = {
    "prefill_seconds",
    "accept_length",
    "tokens",
    "seconds",
    "draft_seconds",
    "verify_seconds",
    "accept_seconds",
    "commit_seconds",
    "feature_seconds",
    "total_tokens",
    "total_seconds",
}


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


@pytest.fixture
def make_config(tmp_path):
    def make(manifest=(), **settings):
        recording = random_recording(np.random.default_rng(3), texts=4, depth=4, longest=12, cap=12)
        path = tmp_path / "t.npz"
        dataclasses.replace(recording, manifest=recording.manifest | dict(manifest)).save(path)
        return Export("entmtp/test-v0", (str(path),), costs=COSTS, max_new_tokens=9, **settings)

    return make


def test_the_dataset_is_what_stepping_gives(make_config, recwarn):
    config = make_config(policies=("random", "threshold:on=0.6"))
    export(config)
    assert not [str(warning.message) for warning in recwarn if "None" in str(warning.message)]
    dataset = minari.load_dataset("entmtp/test-v0")
    env = ReplayEnv(recording=config.recordings, costs=COSTS, max_new_tokens=9)
    metadata = list(dataset.storage.get_episode_metadata(dataset.episode_indices))
    assert [one["options"]["prompt_id"] for one in metadata] == [f"t{i}" for i in range(4) for _ in range(2)]
    assert [one["policy"] for one in metadata] == list(config.policies) * 4
    ends = set()
    for episode, one in zip(dataset.iterate_episodes(), metadata, strict=True):
        policy, state = make_policy(one["policy"], env), None
        observation, info = env.reset(options=one["options"])
        observations, infos = [observation], [info]
        for t, action in enumerate(episode.actions):
            chosen, state = policy.predict(observation, state=state, episode_start=np.array([t == 0]))
            assert chosen == action
            observation, reward, terminated, truncated, info = env.step(action)
            observations.append(observation)
            infos.append(info)
            assert episode.rewards[t] == reward
            assert episode.terminations[t] == terminated
            assert episode.truncations[t] == truncated
        assert terminated or truncated
        ends.add(terminated)
        assert len(episode) == len(episode.rewards) == len(episode.actions)
        np.testing.assert_array_equal(episode.observations, observations)
        assert episode.observations.dtype == np.float32
        assert set(episode.infos) == NUMBERS
        for key, values in episode.infos.items():
            np.testing.assert_array_equal(values, [info[key] for info in infos])
    assert ends == {True, False}


def test_the_dataset_tells_where_it_is_from(make_config):
    config = make_config(num_prompts=2, reward="throughput_advantage:reference=60")
    dataset = export(config)
    about = minari.load_dataset("entmtp/test-v0").storage.metadata
    assert (dataset.total_episodes, about["total_episodes"], about["algorithm_name"]) == (2, 2, "random")
    assert str(config.recordings[0]) in about["description"]
    assert "approximate" not in about["description"]
    assert about["approximate"] is False
    env = dataset.recover_environment()
    assert env.spec.id == "EntMTP/Replay-v0"
    assert env.observation_space == dataset.observation_space
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    env.reset(seed=0, options={"prompt_id": "t0"})
    np.testing.assert_array_equal(
        [env.step(action)[1] for action in dataset[0].actions],
        dataset[0].rewards,
    )
    manifest = json.loads(about["manifest"])
    assert manifest["run"]["libraries"]["gymnasium"] == gymnasium.__version__
    assert {key: manifest[key] for key in env.unwrapped.manifest} == env.unwrapped.manifest


def test_an_approximate_replay_says_so(make_config, capsys):
    dataset = export(make_config({"acceptance": "typical", "approximate": True}))
    assert dataset.storage.metadata["approximate"] is True
    assert dataset.storage.metadata["description"].startswith("The replay is approximate")
    assert "the replay is approximate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset_id": "no id"}, "no id"),
        ({"policies": ("rondom",)}, "did you mean random"),
        ({"costs": "analytic:nodes=1"}, "nodes=1"),
    ],
)
def test_a_mistake_leaves_nothing_behind(make_config, datasets, change, message):
    with pytest.raises(ValueError, match=message):
        export(dataclasses.replace(make_config(), **change))
    assert not list(datasets.rglob("*"))


def test_a_dataset_is_not_replaced(make_config):
    config = make_config(num_prompts=1)
    export(config)
    with pytest.raises(ValueError, match=r"entmtp/test-v0.* already"):
        export(config)
    assert minari.load_dataset("entmtp/test-v0").total_episodes == 1


@pytest.mark.parametrize("change", [{"policies": ()}, {"recordings": ()}, {"num_prompts": -1}])
def test_settings_that_export_nothing(change):
    with pytest.raises(ValueError, match="at least one"):
        Export("t-v0", **change)
