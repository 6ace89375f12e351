import json
import warnings

import pytest

from entmtp_env.prompt_sources.rows import file_rows
from entmtp_env.prompt_sources.unavailable import PromptsUnavailableError

ROWS = [{"question": f"q{i}é\u2028", "n": i} for i in range(3)]


@pytest.fixture
def files(tmp_path):
    """The same rows in each text format."""
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(r, ensure_ascii=False) for r in ROWS), "utf-8")
    (tmp_path / "a.json").write_text(json.dumps(ROWS, ensure_ascii=False), "utf-8")
    return tmp_path


def test_every_format_holds_the_same_rows(files):
    assert list(file_rows(files / "a.json")) == list(enumerate(ROWS, start=1))
    assert list(file_rows(files / "a.jsonl")) == [(1, ROWS[0]), (3, ROWS[1]), (5, ROWS[2])]


def test_parquet_holds_the_same_rows(files):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), files / "a.parquet", row_group_size=2)
    assert list(file_rows(files / "a.parquet")) == list(enumerate(ROWS, start=1))
    (files / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match=r"b\.parquet is not a Parquet file"):
        list(file_rows(files / "b.parquet"))


def test_parquet_without_pyarrow_says_what_to_install(files, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.lib", None)
    (files / "a.parquet").touch()
    with pytest.raises(PromptsUnavailableError, match=r"pip install 'entmtp-env\[datasets\]'"):
        list(file_rows(files / "a.parquet"))


def test_a_file_cut_off_keeps_the_complete_entries_and_says_how_many(files):
    content = (files / "a.json").read_bytes()
    (files / "cut.json").write_bytes(content[:-10])
    with pytest.warns(UserWarning, match=r"cut\.json is cut off: kept 2 complete entries, lost 1 incomplete"):
        assert list(file_rows(files / "cut.json")) == list(enumerate(ROWS, start=1))[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(file_rows(files / "a.json"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", r"cannot read .*a\.csv: expected a name that ends in \.jsonl, \.json, \.parquet"),
        ("b.json", '[{"a": 1}, 2]', r"b\.json, after entry 1: expected \{"),
        (
            "c.json",
            '[{"a": 1}, {"a": x}]',
            r"c\.json, after entry 1: the next object is malformed: Expecting value",
        ),
        ("b.jsonl", '{"a": 1}\n[]\n', r"b\.jsonl, line 2 is not a JSON object"),
    ],
)
def test_a_wrong_file_is_named(files, name, content, message):
    (files / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        list(file_rows(files / name))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no prompt file .*gone\.json: check the path"):
        list(file_rows(tmp_path / "gone.json"))
