import pytest

from entmtp_env.trees import load_bank
from policies import make_policy
from policies.registry import BUILT_IN
from policies.shipped import policy_path, shipped_policies


@pytest.mark.parametrize(("name", "bank"), sorted(shipped_policies()))
def test_what_ships_fits_the_bank_of_its_name(name, bank, bare_env, tmp_path, monkeypatch):
    from entmtp_env.features import FeatureSet

    monkeypatch.chdir(tmp_path)
    trees = load_bank(bank)
    features = FeatureSet(trees.depth, [len(tree) for tree in trees])
    env = bare_env(trees, features.names)
    env.capacity, env.feature_set = 2048, features
    policy, variant = (name, "") if name in BUILT_IN else ("learned", f"/{name}")
    assert make_policy(f"{policy}@{bank}{variant}", env).name == policy


def test_a_file_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "policies.shipped.shipped_policies", lambda: {("threshold", "smollm2-x"): tmp_path / "shipped.json"}
    )
    monkeypatch.chdir(tmp_path)
    assert policy_path("threshold", "smollm2-x") == tmp_path / "shipped.json"
    assert policy_path("learned", "smollm2-x/threshold") == tmp_path / "shipped.json"
    assert policy_path("ladder", "smollm2-x").name == "smollm2-x"
    (tmp_path / "smollm2-x").touch()
    assert policy_path("threshold", "smollm2-x").absolute() == tmp_path / "smollm2-x"
