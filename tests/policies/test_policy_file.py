import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.features import FeatureSet
from policies import PolicyFile, feature_fingerprint, make_policy, policy_names
from policies.registry import policy_settings
from tests.fake_env import NOT_FOR_FAKES

SPECS = [
    *(name for name in policy_names() if name not in {"static", *NOT_FOR_FAKES}),
    "static:chain-2",
    "threshold:on=0.7,off=0.3",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("policy") / "policy.json"


@pytest.fixture
def document(env):
    """A valid policy file, as JSON reads it."""
    options = {"small": "chain-1", "large": "tree-8x4", "score": "deep_path_value", "on": 0.4, "off": 0.2}
    fingerprint = env.bank.fingerprint
    return {"format": 1, "policy": "threshold", "options": options, "bank_fingerprint": fingerprint}


def write(path, document):
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("spec", SPECS)
def test_a_saved_policy_comes_back(env, path, spec):
    policy = make_policy(spec, env)
    PolicyFile.of(policy, calibration={"prompts": 100, "grid": [0.1, 0.2]}).save(path)
    again = make_policy(f"{policy.name}@{path}", env)
    assert type(again) is type(policy)
    assert again.spec == policy.spec
    assert PolicyFile.load(path).calibration == {"prompts": 100, "grid": [0.1, 0.2]}


def test_the_schema_is_the_documented_one(env, path, document):
    policy = make_policy(f"threshold@{write(path, document)}", env)
    assert dict(policy.options) == document["options"]
    PolicyFile.of(policy).save(path)
    assert json.loads(path.read_text()) == document | {"calibration": {}}


def test_another_bank_is_refused(env, path, document):
    document["bank_fingerprint"] = "0" * 16
    with pytest.raises(ValueError, match=rf"bank {'0' * 16}.*{env.bank.fingerprint}.*calibrate again"):
        make_policy(f"threshold@{write(path, document)}", env)


def test_other_features_are_refused_where_they_matter(env, fake_env, path, document):
    document["feature_fingerprint"] = feature_fingerprint(env.feature_names)
    make_policy(f"threshold@{write(path, document)}", env)
    with pytest.raises(ValueError, match=r"belongs to the features .* features="):
        make_policy(f"threshold@{path}", fake_env(features=env.feature_names[::-1]))


def test_another_probe_is_refused_where_it_matters(env, path, bare_env):
    features = FeatureSet(env.bank.depth, [len(tree) for tree in env.bank], probe="first")
    probed = bare_env(env.bank, features.names)
    probed.feature_set = features
    PolicyFile.of(make_policy("threshold", probed)).save(path)
    assert policy_settings(f"threshold@{path}") == {"probe": "first", "features": "heads"}
    assert policy_settings("threshold") == {}
    make_policy(f"threshold@{path}", probed)
    with pytest.raises(ValueError, match=r"made with probe='first', this environment has None; pass probe="):
        make_policy(f"threshold@{path}", env)
    PolicyFile.of(make_policy("static:chain-2", probed)).save(path)
    make_policy(f"static@{path}", env)
    assert policy_settings(f"static@{path}") == {}


def test_another_policy_is_refused(env, path, document):
    with pytest.raises(ValueError, match="for 'threshold', not 'ladder'"):
        make_policy(f"ladder@{write(path, document)}", env)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "another format"),
        ({"options": []}, "options must be a JSON object"),
        ({"policy": 3}, "policy must be a JSON string"),
        ({"trees": []}, "unknown key trees"),
        ({"options": {"tau": 1}}, "'tau'.*small, large"),
        ({"options": {"on": [1]}}, "option on="),
    ],
)
def test_each_fault_has_its_message(env, path, document, change, message):
    with pytest.raises(ValueError, match=message):
        make_policy(f"threshold@{write(path, document | change)}", env)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"format": 1}', "[" * 100_000, "\x00"])
def test_a_foreign_file_is_refused(env, path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a policy file"):
        make_policy(f"threshold@{path}", env)


def test_bytes_that_are_no_text_are_refused(env, path):
    path.write_bytes(b"\xff\xfe\x00PK")
    with pytest.raises(ValueError, match="is not a policy file"):
        make_policy(f"threshold@{path}", env)


def test_a_missing_file_is_a_missing_file(env, path):
    with pytest.raises(FileNotFoundError):
        make_policy(f"threshold@{path}.missing", env)


def test_what_json_cannot_hold_leaves_the_old_file(env, path, document):
    write(path, document)
    with pytest.raises(ValueError, match="JSON"):
        PolicyFile.of(make_policy("threshold", env), calibration={"best": np.inf}).save(path)
    assert json.loads(path.read_text()) == document
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "spec", ["static:chain-2", "random", "threshold", "ladder", "ema-ladder", "bandit", "ucb"]
)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_a_mutated_file_works_or_is_a_value_error(env, path, spec, data):
    policy = make_policy(spec, env)
    PolicyFile.of(policy).save(path)
    document = json.loads(path.read_text())
    place = data.draw(st.sampled_from([document, document["options"]]))
    key = (
        data.draw(st.sampled_from(sorted(place)) | st.text(max_size=6))
        if place
        else data.draw(st.text(max_size=6))
    )
    if data.draw(st.booleans()):
        place[key] = data.draw(JSON)
    else:
        place.pop(key, None)
    write(path, document)
    try:
        loaded = make_policy(f"{policy.name}@{path}", env)
    except ValueError:
        return
    action, _ = loaded.predict(np.full(len(env.feature_names), 0.5, np.float32))
    assert 0 <= int(action) < len(env.bank)


@settings(deadline=None, max_examples=50)
@given(text=st.data())
def test_truncated_text_is_a_value_error(env, path, text):
    PolicyFile.of(make_policy("threshold", env)).save(path)
    whole = path.read_text().rstrip()
    path.write_text(whole[: text.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="is not a policy file"):
        make_policy(f"threshold@{path}", env)
