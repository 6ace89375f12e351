import contextlib
import errno
import gzip
import json
import os
import stat

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from entmtp_env import files
from entmtp_env.files import (
    atomic_path,
    full_disk_named,
    parse_json,
    read_json,
    refuse_existing,
    write_text_atomically,
)


def test_text_is_written_as_utf8_into_a_new_folder(tmp_path):
    path = tmp_path / "new" / "folder" / "file.txt"
    write_text_atomically(path, "τ = 3\n")
    assert path.read_bytes() == "τ = 3\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_the_old_file_stands_until_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    previous = os.umask(0o027)
    try:
        write_text_atomically(tmp_path / "file", "text")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@contextlib.contextmanager
def full_disk():
    """Files may have 4096 bytes meanwhile, so that writing more fails as on a full disk.

    Not for the whole of a test: pytest's own output may go to a longer file.
    """
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_gzip(path):
    with gzip.open(path, "wb") as file:
        file.write(np.random.default_rng(0).bytes(9999))


def write_arrays(path):
    with path.open("wb") as file:
        np.savez(file, x=np.ones(9999))


def write_tensors(path):
    save_file({"x": torch.ones(9999)}, path)


def write_state(path):
    with path.open("wb") as file:
        torch.save({"x": torch.ones(9999)}, file)


@pytest.mark.parametrize(
    "write", [lambda path: path.write_text("x" * 9999), write_gzip, write_arrays, write_tensors, write_state]
)
def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path, write):
    path = tmp_path / "file"
    path.write_text("old")
    with (
        full_disk(),
        pytest.raises(OSError, match=f"no room is left to write {path}: free some"),
        atomic_path(path) as new,
    ):
        write(new)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_may_be_full_before_the_first_byte(tmp_path, monkeypatch):
    def fail(**settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr("tempfile.mkstemp", fail)
    with pytest.raises(OSError, match="no room is left") as caught:
        write_text_atomically(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"


def test_other_errors_of_writing_pass_as_they_are():
    with pytest.raises(PermissionError, match="keep out"), full_disk_named("file"):
        raise PermissionError("keep out")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.booleans())
def test_json_of_our_own_is_read_back(document, ascii_only):
    text = json.dumps(document, ensure_ascii=ascii_only)
    assert parse_json(text, "x") == parse_json(text.encode(), "x") == document


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' is there twice"),
        ("[NaN]", "NaN is no number"),
        ("-Infinity", "-Infinity is no number"),
        ("[1.5, -1e999]", "the number -1e999 is too large"),
        ("1" * 5000, "integer string conversion"),
        ('["\\ud83d"]', "surrogates not allowed"),
        (b'["\xff"]', "can't decode byte 0xff"),
        (b'["\xed\xa0\x80"]', "can't decode byte 0xed"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ('[1, {"a": ' * 40 + "0" + "}]" * 40, "nested more than 64 deep"),
        ("[" * 100_000 + "]" * 100_000, "recursion depth"),
        ("[1", "Expecting ',' delimiter"),
        ("", "Expecting value"),
        ("[1] [2]", "Extra data"),
    ],
)
def test_json_that_cannot_be_used_is_refused(text, message):
    with pytest.raises(ValueError, match=f"^here is not JSON in UTF-8 .*{message}"):
        parse_json(text, "here")


def test_json_is_bounded_in_depth_and_size(tmp_path, monkeypatch):
    assert repr(parse_json("[" * 64 + "]" * 64, "x")) == "[" * 64 + "]" * 64
    path = tmp_path / "large.json"
    path.write_text("[1]")
    assert read_json(path) == [1]
    monkeypatch.setattr(files, "_MAX_BYTES", 2)
    with pytest.raises(ValueError, match=f"{path} is not JSON.* more than 0 MiB"):
        read_json(path)


def test_a_mark_of_byte_order_is_no_part_of_json(tmp_path):
    (tmp_path / "windows.json").write_bytes(b'\xef\xbb\xbf{"\\u00e9": 1}\r\n')
    assert read_json(tmp_path / "windows.json") == {"é": 1}


def test_what_is_there_is_replaced_on_purpose_only(tmp_path):
    here, also, absent = (tmp_path / name for name in ("here", "also", "absent"))
    here.touch()
    also.touch()
    refuse_existing(absent, overwrite=False)
    refuse_existing(here, absent, overwrite=True)
    with pytest.raises(FileExistsError, match=r"here, .*also: there already; choose another --out"):
        refuse_existing(here, absent, also, overwrite=False)
