import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.spec import Spec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("greedy", Spec("greedy")),
        ("static:hydra-default", Spec("static", "hydra-default")),
        ("threshold@folder/file.json", Spec("threshold", file="folder/file.json")),
        ("threshold@a@b:c,d=e", Spec("threshold", file="a@b:c,d=e")),
        ("static:small,steps=3@file.json", Spec("static", "small", {"steps": 3}, "file.json")),
        (
            "threshold:score=deep_path_value,on=0.4",
            Spec("threshold", options={"score": "deep_path_value", "on": 0.4}),
        ),
        ("ladder:small, steps = 3 , wide=True", Spec("ladder", "small", {"steps": 3, "wide": True})),
        ("module:Class:floor=0.5,top=2", Spec("module", "Class", {"floor": 0.5, "top": 2})),
        ("module:Class : floor=a:b@x:y=z", Spec("module", "Class", {"floor": "a:b"}, "x:y=z")),
        ("name:key=a:b=c", Spec("name", options={"key": "a:b=c"})),
        ("name:", Spec("name")),
        ("name:key=", Spec("name", options={"key": ""})),
        ("name:key=a=b", Spec("name", options={"key": "a=b"})),
    ],
)
def test_parts(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("true", True),
        ("FALSE", False),
        ("1.2.3", "1.2.3"),
        ("3x", "3x"),
        ("nan", "nan"),
        ("1_000", "1_000"),
    ],
)
def test_values(text, value):
    parsed = parse_spec(f"name:key={text}").options["key"]
    assert parsed == value
    assert type(parsed) is type(value)


@settings(deadline=None)
@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_numbers_and_booleans_survive(value):
    parsed = parse_spec(f"name:key={value}").options["key"]
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks a name"),
        (":key=1", "lacks a name"),
        ("@file.json", "name@path"),
        ("name@", "name@path"),
        ("name:a,b", "two arguments, 'a' and 'b'"),
        ("name:a,b:c=1", "two arguments, 'a' and 'b'"),
        ("name:a:=1", "empty or repeated key"),
        ("name:=1", "empty or repeated key"),
        ("name:a=1,a=2", "empty or repeated key"),
    ],
)
def test_bad_specs_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_spec(text)
