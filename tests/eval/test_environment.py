import contextlib
import inspect

import gymnasium
import pytest

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.stages import Stages
from eval.environment import enter_policies, environment_manifest, make_live_env
from policies.learned import Learned
from policies.policy_file import PolicyFile
from policies.registry import make_policy
from tests.eval.decoder_env import ENV_ID, DecoderEnv
from tests.policies.test_network import make_network


def test_settings_reach_the_environment(config, prompt_file):
    settings = vars(config(max_new_tokens=7, model="mine"))
    env = make_live_env(settings, prompt_file(2, "two.jsonl"), ENV_ID).unwrapped
    assert (env.max_tokens, env.manifest["model"], len(env.prompts)) == (7, "mine", 2)


def test_the_live_environment_takes_all_of_them(tiny_files, config):
    settings = vars(config()) | tiny_files.kwargs
    env = make_live_env(settings, tiny_files.prompts, "EntMTP/Live-v0").unwrapped
    assert env.manifest["max_new_tokens"] == 24
    assert env.manifest["capacity"] == 256


def test_the_staged_environment_has_stages_and_no_bank(tiny_files, config, tmp_path):
    stages = Stages("two", DraftShape((1, 2), (3, 2)), (0, 1, 5))
    stages.save(tmp_path / "stages.json")
    settings = vars(config(stages=str(tmp_path / "stages.json"), bank="no-such-bank")) | tiny_files.kwargs
    env = make_live_env(settings, tiny_files.prompts, "EntMTP/Staged-v0").unwrapped
    assert env.stages == stages
    assert (env.manifest["max_new_tokens"], env.manifest["bank_fingerprint"]) == (24, stages.fingerprint)


class PassesOn(DecoderEnv):
    def __init__(self, **settings):
        super().__init__(**settings)


gymnasium.register(id="EntMTP/PassesOn-v0", entry_point=PassesOn)


def test_an_environment_that_passes_keywords_on_gets_those_of_the_bank(config, prompt_file):
    env = make_live_env(vars(config(max_new_tokens=7)), prompt_file(2), "EntMTP/PassesOn-v0").unwrapped
    assert env.max_tokens == 7


def test_the_manifest_of_an_environment_of_ones_own_has_its_source(
    tiny_files, config, prompt_file, monkeypatch, tmp_path
):
    live = make_live_env(vars(config()) | tiny_files.kwargs, tiny_files.prompts, "EntMTP/Live-v0")
    assert environment_manifest(live) == live.unwrapped.manifest
    own = make_live_env(vars(config()), prompt_file(2), ENV_ID)
    first = environment_manifest(own)
    assert first == own.unwrapped.manifest | {"source_fingerprint": first["source_fingerprint"]}
    source = tmp_path / "changed.py"
    source.write_text("changed = True")
    monkeypatch.setattr(inspect, "getsourcefile", lambda kind: str(source))
    assert environment_manifest(own)["source_fingerprint"] not in ("", first["source_fingerprint"])


@pytest.fixture
def enter(tiny_files, config):
    with contextlib.ExitStack() as stack:

        def build(*specs, **settings):
            settings = vars(config(env_id="EntMTP/Live-v0")) | tiny_files.kwargs | settings
            rows = {f"row of {spec}": spec for spec in specs}
            return enter_policies(settings, tiny_files.prompts, rows, stack)

        yield build


def test_each_policy_gets_the_environment_that_it_is_made_for(enter):
    entrants = enter("autoregressive", "eagle2", "threshold", "eagle2-cost-aware")
    assert [own.env_id for own in entrants.values()] == ["EntMTP/Live-v0", "EntMTP/Staged-v0"] * 2
    plain, eagle, threshold, aware = (own.env for own in entrants.values())
    assert plain is threshold
    assert eagle is aware
    assert plain.unwrapped.engine is eagle.unwrapped.engine
    assert plain.unwrapped.decoder is not eagle.unwrapped.decoder
    assert [own.policy.name for own in entrants.values()] == [name.split()[-1] for name in entrants]


def test_an_environment_of_ones_own_replaces_that_of_the_bank_only(enter):
    entrants = enter("autoregressive", "eagle2", env_id=ENV_ID)
    assert [own.env_id for own in entrants.values()] == [ENV_ID, "EntMTP/Staged-v0"]
    assert isinstance(entrants["row of autoregressive"].env.unwrapped, DecoderEnv)


def test_a_policy_gets_the_probe_that_its_file_names(enter, tiny_files, config, tmp_path):
    settings = vars(config(env_id="EntMTP/Live-v0")) | tiny_files.kwargs
    first = make_live_env(settings | {"probe": "first"}, tiny_files.prompts, "EntMTP/Live-v0")
    shape = len(first.unwrapped.feature_names), len(first.unwrapped.bank)
    path = tmp_path / "first.npz"
    Learned(first, make_network(sizes=(shape[0], 4, shape[1]))).save(path)
    entrants = enter("autoregressive", f"learned@{path}", f"learned:kind=q@{path}")
    plain, learned, again = entrants.values()
    assert [own.env.unwrapped.feature_set.probe for own in (plain, learned, again)] == [
        "none",
        "first",
        "first",
    ]
    assert learned.env is again.env
    assert [own.env_id for own in (plain, learned)] == ["EntMTP/Live-v0", "EntMTP/Live-v0 probe=first"]
    with pytest.raises(ValueError, match=r"made with probe='first', this environment has 'none'"):
        make_policy(f"learned@{path}", plain.env)


def test_a_policy_gets_the_features_that_its_file_names_and_no_others(enter, tiny_files, config, tmp_path):
    settings = vars(config(env_id="EntMTP/Live-v0")) | tiny_files.kwargs
    env = make_live_env(settings, tiny_files.prompts, "EntMTP/Live-v0")
    narrow = make_live_env(settings | {"features": "acceptance,token"}, tiny_files.prompts, "EntMTP/Live-v0")
    threshold, learned = tmp_path / "threshold.json", tmp_path / "learned.npz"
    PolicyFile.of(make_policy("threshold:score=best_path_value", env)).save(threshold)
    shape = len(narrow.unwrapped.feature_names), len(narrow.unwrapped.bank)
    Learned(narrow, make_network(sizes=(shape[0], 4, shape[1]))).save(learned)
    entrants = enter("autoregressive", f"threshold@{threshold}", f"learned@{learned}", "threshold")
    assert [own.env.unwrapped.feature_set.groups for own in entrants.values()][1:3] == [
        ("heads",),
        ("acceptance", "token"),
    ]
    assert [own.env_id.removeprefix("EntMTP/Live-v0") for own in entrants.values()] == [
        "",
        " features=heads",
        " features=acceptance,token",
        "",
    ]
