import sys

import numpy as np
import pytest

from policies import PolicyFile, SchedulerPolicy, make_policy, policy_names
from policies.registry import BUILT_IN, policy_env_id, policy_fingerprint
from tests.fake_env import NOT_FOR_FAKES

MODULE = """
import numpy as np
from policies import SchedulerPolicy


class Fixed(SchedulerPolicy):
    def __init__(self, env, tree="chain-1", scale=1.0):
        super().__init__(env)
        self.options = {"tree": tree, "scale": scale}
        self.action = self.bank.index(tree)

    def act(self, observations, memory):
        return np.full(len(observations), self.action), memory


class Duck:
    def __init__(self, env):
        self.env = env

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.int64(1), state


class Mute:
    def __init__(self, env):
        pass


number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Name of a fresh module in the current directory, which is not on ``sys.path``."""
    name = f"mine_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield name
    sys.modules.pop(name, None)


def test_every_built_in_class_carries_its_name(env):
    # For the others see test_oracle.py, test_network_policy.py and test_staged.py.
    for name in set(policy_names()) - NOT_FOR_FAKES:
        policy = make_policy("static:chain-1" if name == "static" else name, env)
        assert policy.name == name
        assert isinstance(policy, SchedulerPolicy)
    assert set(policy_names()) == set(BUILT_IN)


def test_a_class_by_import_path(env, module):
    path = list(sys.path)
    policy = make_policy(f"{module}:Fixed,tree=chain-3,scale=2.5", env)
    assert make_policy(f"{module}:Fixed:tree=chain-3,scale=2.5", env).spec == policy.spec
    assert env.bank[int(policy.predict(env.reset(seed=0)[0])[0])].name == "chain-3"
    assert policy.options["scale"] == 2.5
    assert policy.spec == f"{module}:Fixed,tree=chain-3,scale=2.5"
    assert sys.path == path


def test_a_plain_class_with_predict_is_enough(env, module):
    assert make_policy(f"{module}:Duck", env).env is env


def test_a_class_of_ones_own_from_a_policy_file(env, module, tmp_path):
    saved = make_policy(f"{module}:Fixed,tree=chain-2", env)
    PolicyFile.of(saved).save(tmp_path / "mine.json")
    assert make_policy(f"{module}:Fixed@mine.json", env).spec == saved.spec


def test_an_object_without_predict_is_refused(env, module):
    with pytest.raises(TypeError, match=r"Mute has no predict.*SchedulerPolicy"):
        make_policy(f"{module}:Mute", env)
    with pytest.raises(TypeError, match="number is a int"):
        make_policy(f"{module}:number", env)


def test_a_missing_class_lists_the_others(env, module):
    with pytest.raises(ValueError, match=r"no 'Fixd'.*Fixed"):
        make_policy(f"{module}:Fixd", env)


def test_a_broken_import_inside_a_module_is_shown_as_it_is(env, module, tmp_path):
    (tmp_path / f"{module}.py").write_text("import no_such_package_anywhere")
    with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
        make_policy(f"{module}:Fixed", env)


@pytest.mark.parametrize("spec", ["treshold", "treshold:on=0.3", "treshold:Class"])
def test_an_unknown_name_lists_close_and_all_names(env, spec):
    with pytest.raises(
        ValueError,
        match=r"no policy 'treshold' \(did you mean threshold or staged-threshold\?\).*ladder, learned",
    ):
        make_policy(spec, env)


@pytest.mark.parametrize("spec", ["..:A", "a b:C", "no.such.module:Class", "1:2", "", ":x"])
def test_nonsense_is_a_value_error(env, spec):
    with pytest.raises(ValueError, match=r"no policy|lacks a name"):
        make_policy(spec, env)


def test_unknown_options_list_the_known_ones(env):
    with pytest.raises(ValueError, match=r"'threshold'.*'tau'.*small, large, score, on, off"):
        make_policy("threshold:tau=0.3", env)
    with pytest.raises(ValueError, match=r"'hydra-default'.*options are: none"):
        make_policy("hydra-default:tree=chain-1", env)


@pytest.mark.parametrize("spec", ["threshold:chain-1", "static:chain-1,tree=chain-2"])
def test_an_argument_without_a_place_is_refused(env, spec):
    with pytest.raises(ValueError, match="takes no argument 'chain-1'"):
        make_policy(spec, env)


def test_the_environment_that_a_policy_is_made_for(env, module, tmp_path):
    assert policy_env_id("static:tree-6x3") == "EntMTP/Live-v0"
    assert policy_env_id("threshold@no-such-file.json") == "EntMTP/Live-v0"
    for spec in ("eagle2", "eagle2-cost-aware:rate=40", "staged-threshold@no-such-file.json"):
        assert policy_env_id(spec) == "EntMTP/Staged-v0"
    assert policy_env_id(f"{module}:Duck") == "EntMTP/Live-v0"
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write("\nDuck.env_id = 'mine:Mine-v3'\n")
    sys.modules.pop(module)
    assert policy_env_id(f"{module}:Duck,key=1") == "mine:Mine-v3"
    with pytest.raises(ValueError, match="policy 'nosuch:x=1': no policy 'nosuch'"):
        policy_env_id("nosuch:x=1")


def test_predict_of_a_custom_policy_is_batched(env, module):
    rows = np.zeros((4, len(env.feature_names)), np.float32)
    assert make_policy(f"{module}:Fixed", env).predict(rows)[0].shape == (4,)


def test_the_fingerprint_of_a_policy_is_that_of_what_it_is_read_from(env, module, tmp_path):
    assert policy_fingerprint("threshold:on=0.5") == ""
    path = tmp_path / "threshold.json"
    PolicyFile("threshold", env.bank.fingerprint).save(path)
    first = policy_fingerprint(f"threshold@{path}")
    assert policy_fingerprint(f"threshold:on=0.5@{path}") == first != ""
    path.write_text(path.read_text() + "\n")
    assert policy_fingerprint(f"threshold@{path}") not in ("", first)
    own = policy_fingerprint(f"{module}:Duck")
    with (tmp_path / f"{module}.py").open("a") as file:
        file.write("\nDuck.new = 1\n")
    assert policy_fingerprint(f"{module}:Duck") not in ("", own)
    with pytest.raises(FileNotFoundError):
        policy_fingerprint("threshold@no-such-file.json")


def test_the_fingerprint_covers_the_files_that_options_name(env, module, tmp_path):
    costs, other = tmp_path / "costs.json", tmp_path / "other.json"
    costs.write_text("1")
    other.write_text("1")
    PolicyFile("staged-threshold", env.bank.fingerprint, {"costs": [str(costs)]}).save("policy.json")
    named = (
        f"staged-threshold:costs={costs}",
        f"staged-threshold:costs=analytic:{costs}|node=0.1",
        f"oracle:{costs}",
        f"{module}:Duck,where={costs}",
        "staged-threshold@policy.json",
    )
    unnamed = ("staged-threshold:costs=auto", f"staged-threshold:costs={other}@policy.json")
    before = [[policy_fingerprint(spec) for spec in specs] for specs in (named, unnamed)]
    assert "" not in before[0]
    costs.write_text("2")
    after = [[policy_fingerprint(spec) for spec in specs] for specs in (named, unnamed)]
    assert all(old != new for old, new in zip(before[0], after[0], strict=True))
    assert before[1] == after[1]
