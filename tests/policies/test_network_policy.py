import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from entmtp_env.replay.env import ReplayEnv
from entmtp_env.sealed_npz import load_sealed, save_sealed
from entmtp_env.trees import DraftTree, TopologyBank
from policies import PolicyFile, make_policy, run_episode
from policies.learned import Learned
from policies.value import Value
from tests.policies.test_network import make_network
from tests.recordings import random_recording, saved_settings


@pytest.fixture
def policy(env):
    return Learned(env, make_network(sizes=(len(env.feature_names), 4, len(env.bank))), kind="q")


@pytest.fixture
def path(policy, tmp_path):
    policy.save(tmp_path / "policy.npz", training={"seed": 3})
    return tmp_path / "policy.npz"


def test_a_saved_policy_comes_back(env, policy, path):
    observations = np.random.default_rng(0).normal(0, 3, (50, len(env.feature_names))).astype(np.float32)
    expected = policy.predict(observations)[0]
    assert len(set(expected.tolist())) > 1
    loaded = make_policy(f"learned@{path}", env)
    for again in (loaded, Learned.load(path, env), make_policy(loaded.spec, env)):
        assert again.kind == "q"
        np.testing.assert_array_equal(again.predict(observations)[0], expected)
    assert load_sealed(path, "policy")[0]["calibration"] == {"seed": 3}


def test_options_of_the_spec_replace_those_of_the_file(env, path):
    for again in (make_policy(f"learned:kind=logits@{path}", env), Learned.load(path, env, kind="logits")):
        assert again.kind == "logits"
        assert again.spec == f"learned:kind=logits@{path}"
    with pytest.raises(ValueError, match=r"'learned'.*'width'"):
        make_policy(f"learned:width=3@{path}", env)


def test_another_bank_or_other_features_are_refused(env, fake_env, path):
    other = TopologyBank([DraftTree.chain(d) for d in range(1, len(env.bank))])
    assert len(other) == len(env.bank)
    with pytest.raises(ValueError, match=rf"belongs to the bank {env.bank.fingerprint}"):
        make_policy(f"learned@{path}", fake_env(bank=other))
    with pytest.raises(ValueError, match="belongs to the features"):
        make_policy(f"learned@{path}", fake_env(features=env.feature_names[::-1]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    recording = random_recording(np.random.default_rng(5), texts=9, longest=24, cap=24)
    return saved_settings(tmp_path_factory.mktemp("recorded"), recording)


def schedules(env, policy):
    """The trees for every text, with the tokens that each emits."""
    episodes = [run_episode(env, policy, text.prompt_id, seed=0) for text in env.prompts]
    return [[(step.action, step.tokens) for step in episode.steps] for episode in episodes]


@pytest.mark.parametrize("name", ["learned", "value"])
@pytest.mark.parametrize("record", [None, "manifest"])
def test_shares_of_other_settings_mean_what_they_meant_in_training(recorded, tmp_path, name, record):
    trained, own = ReplayEnv(**recorded, capacity=64), {"max_new_tokens": 12, "capacity": 48}
    elsewhere, cls = ReplayEnv(**recorded, **own), {"learned": Learned, "value": Value}[name]
    features, trees = trained.feature_names, np.arange(4)
    # The greater the shares, the later the tree, and little else matters.
    network = make_network(sizes=(len(features), 4), clip=9.0)
    network.weights[0][:] *= 0.01
    network.weights[0][[features.index("generated_fraction"), features.index("context_fraction")]] = trees
    network = replace(network, biases=(3 - trees**2 / 5,), mean=0 * network.mean, scale=0 * network.scale + 1)
    original = cls(trained, network)
    original.save(tmp_path / "p.npz", record and {"environment": trained.manifest, "seed": 1})
    loaded, alone = make_policy(f"{name}@{tmp_path}/p.npz", elsewhere), cls(elsewhere, network)
    found = schedules(elsewhere, loaded)
    same = [
        # Where the lower cap cuts a step off, it emits less.
        [action for action, _ in mine] == [action for action, _ in whole[: len(mine)]]
        for mine, whole in zip(found, schedules(trained, original), strict=True)
    ]
    assert all(same)
    assert found != schedules(elsewhere, alone)
    # As saved anew it is one for where it is.
    loaded.save(tmp_path / "again.npz")
    assert schedules(elsewhere, make_policy(f"{name}@{tmp_path}/again.npz", elsewhere)) == found
    for again in (make_policy(f"{name}@{tmp_path}/p.npz", trained), original):
        assert schedules(trained, again) == schedules(trained, original)


@pytest.mark.parametrize("environment", [None, 3, {}, {"max_new_tokens": None, "capacity": "64"}])
def test_a_file_that_does_not_tell_the_settings_is_taken_as_it_is(recorded, tmp_path, environment):
    env = ReplayEnv(**recorded, max_new_tokens=12)
    policy = Learned(env, make_network(sizes=(len(env.feature_names), 8, 4)))
    policy.save(tmp_path / "p.npz", {"environment": environment})
    assert schedules(env, make_policy(f"learned@{tmp_path}/p.npz", env)) == schedules(env, policy)


def test_another_policy_is_refused(env, path):
    with pytest.raises(ValueError, match="for 'learned', not 'value'"):
        make_policy(f"value@{path}", env)


def test_any_changed_byte_is_found(env, path):
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(len(whole), size=100):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="damaged or is no policy"):
            make_policy(f"learned@{path}", env)


def test_foreign_files_are_refused(env, policy, path, tmp_path):
    PolicyFile.of(make_policy("random", env)).save(tmp_path / "other.json")
    with pytest.raises(ValueError, match="damaged or is no policy"):
        make_policy(f"learned@{tmp_path}/other.json", env)
    header, arrays = load_sealed(path, "policy")
    save_sealed(path, "recording", header, arrays)
    with pytest.raises(ValueError, match="is not a policy"):
        make_policy(f"learned@{path}", env)
    save_sealed(path, "policy", header | {"author": "me"}, arrays)
    with pytest.raises(ValueError, match=r"no valid policy.*'author'"):
        make_policy(f"learned@{path}", env)
    for options in ({"network": 3}, {"file": "x"}, [], "kind", None):
        save_sealed(path, "policy", header | {"options": options}, arrays)
        with pytest.raises(ValueError, match="no valid policy"):
            make_policy(f"learned@{path}", env)
    save_sealed(path, "policy", header, arrays | {"mean": np.full_like(arrays["mean"], np.nan)})
    with pytest.raises(ValueError, match=r"no valid policy.*not finite"):
        make_policy(f"learned@{path}", env)
    with pytest.raises(FileNotFoundError):
        make_policy(f"learned@{path}.missing", env)


@pytest.mark.parametrize("name", ["learned", "value"])
def test_without_a_file_it_says_what_to_write(env, name):
    with pytest.raises(ValueError, match=rf"read from a file: write {name}@<file>"):
        make_policy(name, env)


def test_a_network_of_another_size_is_refused(env):
    with pytest.raises(
        ValueError, match=r"the network has 5 inputs and 3 outputs, the environment 8 features"
    ):
        Learned(env, make_network())


def test_acting_needs_no_torch():
    code = "import policies.learned, policies.value, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
