import io
import zipfile
from random import Random

import numpy as np
import pytest

from entmtp_env.sealed_npz import load_sealed, save_sealed
from tests import fuzzing

HEADER = {"format": 1, "name": "Zürich \u2028 東京", "nested": [{"a": None, "b": 0.1}]}
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "ranks": RANDOM.integers(-1, 50, (40, 4)).astype(np.int32),
    "values": RANDOM.random((40, 3)).astype(np.float16),
    "flags": RANDOM.random(40) < 0.5,
    "empty": np.zeros((40, 0), dtype=np.float32),
    "scalar": np.array(7, dtype=np.int64),
}


@pytest.fixture
def path(tmp_path):
    save_sealed(tmp_path / "sealed.npz", "thing", HEADER, ARRAYS)
    return tmp_path / "sealed.npz"


def assert_refused(path, data, match="damaged or is no thing"):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=match) as caught:
        load_sealed(path, "thing")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_was_saved_is_loaded(path):
    header, arrays = load_sealed(path, "thing")
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_numpy_reads_it(path):
    with np.load(path) as archive:
        assert set(archive.files) == {"header", *ARRAYS}
        np.testing.assert_array_equal(archive["ranks"], ARRAYS["ranks"])


def test_a_zip_tool_finds_nothing_wrong(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


def test_it_replaces_a_file_and_leaves_nothing_beside_it(path):
    save_sealed(path, "thing", {"format": 2}, {})
    assert load_sealed(path, "thing") == ({"format": 2}, {})
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float64("nan")])
def test_a_header_that_could_not_be_loaded_is_not_saved(path, number):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"sealed\.npz is not written: .* is no JSON"):
        save_sealed(path, "thing", {"nested": [{"share": number}]}, ARRAYS)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_objects_are_not_saved_as_pickles_that_load(path):
    """Whoever seals a file can put a pickle into it; it is not executed."""
    save_sealed(path, "thing", HEADER, {"evil": np.array([print], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_sealed(path, "thing")


def test_one_changed_bit_anywhere_is_found(path):
    data, random = path.read_bytes(), Random(0)
    for bit in random.sample(range(8 * len(data)), 400):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert_refused(path, changed)


def test_every_truncation_is_found(path):
    data = path.read_bytes()
    for length in {*range(0, len(data), 7), *range(len(data) - 80, len(data)), 1, 63, 64, 65}:
        assert_refused(path, data[:length])


@pytest.mark.parametrize("junk", [b"\0", b"\n", b"x" * 64, b"PK\5\6" + bytes(18)])
def test_bytes_more_at_either_end_are_found(path, junk):
    data = path.read_bytes()
    assert_refused(path, data + junk)
    assert_refused(path, junk + data)


def test_swapped_blocks_are_found(path):
    data, random = path.read_bytes(), Random(0)
    for _ in range(50):
        first, second = sorted(random.sample(range(len(data) // 16), 2))
        blocks = [data[16 * i : 16 * i + 16] for i in range(len(data) // 16 + 1)]
        blocks[first], blocks[second] = blocks[second], blocks[first]
        if b"".join(blocks) != data:
            assert_refused(path, b"".join(blocks))


def foreign_files():
    npz, archive = io.BytesIO(), io.BytesIO()
    np.savez_compressed(npz, **ARRAYS)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "hello")
    npy = io.BytesIO()
    np.save(npy, ARRAYS["ranks"])
    text = b'{"kind": "thing"}\n' * 20
    return [b"", b"x", bytes(64), bytes(1000), text, npz.getvalue(), archive.getvalue(), npy.getvalue()]


@pytest.mark.parametrize("data", foreign_files(), ids=range(8))
def test_foreign_files_are_refused(tmp_path, data):
    assert_refused(tmp_path / "foreign.npz", data)


@pytest.mark.parametrize("header", [b"[1]", b"\xff", b"[" * 100_000, b"", b'{"kind": "thing"'])
def test_a_sealed_file_with_another_header_is_refused(path, header):
    path.write_bytes(fuzzing.seal(header, {}))
    with pytest.raises(ValueError, match=r"no thing of this package|is not a thing"):
        load_sealed(path, "thing")


def test_another_kind_is_named(path):
    with pytest.raises(ValueError, match=r"sealed.npz is not a cost table$"):
        load_sealed(path, "cost table")


def test_a_missing_file_is_not_a_damaged_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.npz"):
        load_sealed(tmp_path / "absent.npz", "thing")
