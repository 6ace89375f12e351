import os
import stat

import pytest

from entmtp_env.files import atomic_path, write_text_atomically


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
