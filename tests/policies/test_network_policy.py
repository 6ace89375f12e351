import subprocess
import sys

import numpy as np
import pytest

from entmtp_env.sealed_npz import load_sealed, save_sealed
from entmtp_env.trees import DraftTree, TopologyBank
from policies import PolicyFile, make_policy
from policies.learned import Learned
from tests.policies.test_network import make_network


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
