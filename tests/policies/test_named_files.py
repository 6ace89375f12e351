from pathlib import Path

import pytest

from policies.named_files import named_files


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Files ``a.json`` and ``b.npz`` in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "b.npz"):
        Path(name).write_text(name)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a.json", ["a.json"]),
        ("a.json|b.npz", ["a.json", "b.npz"]),
        (["b.npz", "chat", "a.json"], ["b.npz", "a.json"]),
        ("analytic:a.json", ["a.json"]),
        ("analytic:a.json|node=0.1", ["a.json"]),
        ("analytic:a.json,node=0.1", ["a.json"]),
        (("b.npz:evaluation", "a.json"), ["b.npz", "a.json"]),
        ("tree-4x2", []),
        (0.5, []),
        ("", []),
        (".", []),
        ("x" * 5000 + "\0", []),
    ],
)
def test_files_are_found_wherever_an_option_names_them(value, found):
    assert named_files({"first": 1, "option": value}) == [Path(name) for name in found]


def test_a_file_is_listed_once():
    assert named_files({"one": "a.json", "two": ("b.npz", "a.json")}) == [Path("a.json"), Path("b.npz")]
