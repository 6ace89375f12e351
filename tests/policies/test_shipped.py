import pytest

from entmtp_env.trees import load_bank
from policies import make_policy
from policies.shipped import policy_path, shipped_policies


@pytest.mark.parametrize(("policy", "bank"), sorted(shipped_policies()))
def test_what_ships_fits_the_bank_of_its_name(policy, bank, bare_env, tmp_path, monkeypatch):
    from entmtp_env.features import FeatureSet

    monkeypatch.chdir(tmp_path)
    trees = load_bank(bank)
    features = FeatureSet(trees.depth, [len(tree) for tree in trees])
    env = bare_env(trees, features.names)
    assert make_policy(f"{policy}@{bank}", env).name == policy


def test_a_file_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "policies.shipped.shipped_policies", lambda: {("threshold", "smollm2-x"): tmp_path / "shipped.json"}
    )
    monkeypatch.chdir(tmp_path)
    assert policy_path("threshold", "smollm2-x") == tmp_path / "shipped.json"
    assert policy_path("ladder", "smollm2-x").name == "smollm2-x"
    (tmp_path / "smollm2-x").touch()
    assert policy_path("threshold", "smollm2-x").absolute() == tmp_path / "smollm2-x"
