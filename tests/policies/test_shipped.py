from types import SimpleNamespace

import pytest

from entmtp_env.decoding.stages import load_stages
from entmtp_env.features import FeatureSet
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from entmtp_env.staged_features import StagedFeatures
from entmtp_env.trees import load_bank
from policies import make_policy
from policies.lockstep import replay
from policies.registry import BUILT_IN, policy_env_id, policy_settings
from policies.shipped import policy_path, shipped_policies


@pytest.mark.parametrize(("name", "bank"), sorted(shipped_policies()))
def test_what_ships_fits_the_bank_of_its_name(name, bank, bare_env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy, variant = (name, "") if name in BUILT_IN else ("learned", f"/{name}")
    spec = f"{policy}@{bank}{variant}"
    if policy_env_id(spec) == "EntMTP/Staged-v0":
        actions = load_stages(bank)
        features = StagedFeatures(actions)
    else:
        actions = load_bank(bank)
        sizes = [len(tree) for tree in actions]
        features = FeatureSet(actions.depth, sizes, probe=policy_settings(spec).get("probe", "none"))
    env = bare_env(actions, features.names)
    env.capacity, env.feature_set, env.stages = 2048, features, actions
    assert make_policy(spec, env).name == policy


@pytest.mark.parametrize(("name", "bank"), sorted(shipped_policies()))
def test_what_ships_says_what_is_drafted_before_its_decisions_and_what_it_reads(
    name, bank, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    spec = f"{name}@{bank}" if name in BUILT_IN else f"learned@{bank}/{name}"
    settings = policy_settings(spec)
    if policy_env_id(spec) != "EntMTP/Staged-v0":
        assert settings.get("probe") == {"static": None, "first": "first"}.get(name, "none")
    reads = {"threshold": "heads", "ladder": "heads", "ema-ladder": "acceptance,position"}
    # Networks read whatever they were trained on.
    reads |= dict.fromkeys(("staged-threshold", "eagle2"), "position")
    assert settings.get("features") == reads.get(name)


@pytest.mark.parametrize("spec", ["learned@smollm2-pooled", "learned@smollm2-pooled/first"])
def test_what_was_taught_by_expected_cost_may_be_drawn_from(spec):
    ids = [text.prompt_id for text in load_recording("math:evaluation").texts]
    envs = ReplayVectorEnv(
        len(ids),
        recording="math:evaluation",
        costs="analytic:smollm2-cpu",
        bank="smollm2-pooled",
        probe=policy_settings(spec)["probe"],
    )
    policy = make_policy(spec, envs)
    drawn = SimpleNamespace(predict=lambda seen, **others: policy.predict(seen, deterministic=False))
    chosen, by_chance = (
        sum(episode.seconds for episode in replay(envs, own, ids).episodes) for own in (policy, drawn)
    )
    assert by_chance < 1.03 * chosen


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


def test_a_folder_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-pooled").mkdir()
    assert policy_path("threshold", "smollm2-pooled") == shipped_policies()["threshold", "smollm2-pooled"]
    with pytest.raises(FileNotFoundError, match=r"smollm2-pooled is a folder.*oak@smollm2-pooled/<file>"):
        policy_path("oak", "smollm2-pooled")
