import pytest

from train.journal import Journal

SETTINGS = {"seed": 1, "prompts": ("a", "b")}


def test_rows_are_there_again(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    journal = Journal(path, SETTINGS)
    assert journal.rows == []
    assert not path.exists()
    rows = [{"a": 1.25, "nodes": [[0], [0, 0]]}, {"a": 0.1 + 0.2}]
    for row in rows:
        journal.add(row)
        assert Journal(path, SETTINGS).rows == journal.rows
    assert Journal(path, SETTINGS).rows == rows
    assert len(path.read_text().splitlines()) == 3


def test_other_settings_are_refused_by_name(tmp_path):
    Journal(tmp_path / "j", SETTINGS).add({})
    with pytest.raises(ValueError, match="seed was 1 and is 2; go on with those, or give another --out"):
        Journal(tmp_path / "j", SETTINGS | {"seed": 2})
    with pytest.raises(ValueError, match="depth was None and is 3"):
        Journal(tmp_path / "j", SETTINGS | {"depth": 3})
    with pytest.raises(ValueError, match="seed was 1 and is None"):
        Journal(tmp_path / "j", {"prompts": ("a", "b")})


@pytest.mark.parametrize("text", ["", "{", "[1]\n", '{"seed": 1}\n{"torn'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "j").write_text(text)
    with pytest.raises(ValueError, match=r"j is damaged .*; delete it to start anew"):
        Journal(tmp_path / "j", SETTINGS)
    assert (tmp_path / "j").read_text() == text
