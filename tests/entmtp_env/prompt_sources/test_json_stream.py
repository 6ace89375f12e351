import io
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.prompt_sources.json_stream import CutOffError, stream_objects

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('ab{}[]"\\,é∂😀'), inner),
    max_leaves=6,
)
OBJECTS = st.lists(st.dictionaries(st.text('ab{}[]"\\,é∂😀'), VALUES, max_size=3), max_size=5)
CHUNKS = st.sampled_from([1, 2, 3, 7, 64, 1 << 20])


def collect(content, chunk_size=1 << 20):
    """The objects that were yielded, and the error that ended them."""
    objects = []
    try:
        objects.extend(stream_objects(io.BytesIO(content), chunk_size))
    except CutOffError as error:
        return objects, error
    return objects, None


@given(OBJECTS, CHUNKS, st.sampled_from([None, 2]), st.booleans(), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_an_array_is_read_as_json_does(objects, chunk_size, indent, ascii_only, mark):
    content = mark + json.dumps(objects, indent=indent, ensure_ascii=ascii_only).encode()
    assert collect(content, chunk_size) == (objects, None)


@given(st.data(), OBJECTS, CHUNKS, st.booleans())
def test_of_an_array_cut_anywhere_exactly_the_closed_objects_are_kept(data, objects, chunk_size, ascii_only):
    parts = [json.dumps(item, ensure_ascii=ascii_only).encode() for item in objects]
    content = b"[" + b", ".join(parts)
    cut = data.draw(st.integers(0, len(content)))
    ends = [1 + sum(map(len, parts[: i + 1])) + 2 * i for i in range(len(parts))]
    kept, error = collect(content[:cut], chunk_size)
    assert kept == [item for item, end in zip(objects, ends, strict=True) if end <= cut]
    starts = [end - len(part) for end, part in zip(ends, parts, strict=True)]
    assert error.incomplete == any(start < cut < end for start, end in zip(starts, ends, strict=True))


@pytest.mark.parametrize(
    ("content", "kept", "message"),
    [
        (b'{"a": 1}', 0, r"expected \[ of a JSON array of objects, got '\{'"),
        (b"[1, 2]", 0, r"expected \{ or \] .* got '1'"),
        (b'[{"a": 1} {"b": 2}]', 1, r"expected , or \] .* got '\{'"),
        (b'[{"a": 1}, ]', 1, r"expected \{ .* got '\]'"),
        (b'[{"a": "\xff"}]', 0, "utf-8"),
    ],
)
def test_what_is_no_array_of_objects_is_refused(content, kept, message):
    objects = []
    with pytest.raises(ValueError, match=message) as error:
        objects.extend(stream_objects(io.BytesIO(content)))
    assert not isinstance(error.value, CutOffError)
    assert len(objects) == kept


@given(CHUNKS, st.sampled_from([b"", b', {"c": 3}]', b', {"c": ' + b"3" * 99]))
@pytest.mark.parametrize(
    ("malformed", "message"),
    [
        (b'{"b": tru}', "Expecting value near"),
        (b'{"b" 2}', "Expecting ':' delimiter near"),
        (b'{"b": 2 "c": 3}', "Expecting ',' delimiter near"),
        (b'{"b": "\\x"}', r"Invalid \\escape"),
        (b'{"b": "\n"}', "Invalid control character"),
        (b'{"b": "\\u12x4"}', "escape"),
        (b"{2: 2}", "Expecting property name"),
    ],
)
def test_a_malformed_object_is_no_end_of_the_file(malformed, message, chunk_size, behind):
    objects = []
    with pytest.raises(ValueError, match=message) as error:
        objects.extend(stream_objects(io.BytesIO(b'[{"a": 1}, ' + malformed + behind), chunk_size))
    assert not isinstance(error.value, CutOffError)
    assert objects == [{"a": 1}]


def test_a_malformed_object_is_told_before_the_rest_is_read():
    file = io.BytesIO(b'[{"a": 1}, {"b": tru}, ' + b'{"c": 3}, ' * 10_000)
    with pytest.raises(ValueError, match="malformed"):
        list(stream_objects(file, chunk_size=64))
    assert file.tell() == 64


def test_memory_is_that_of_a_chunk_and_an_object():
    class Endless:
        """An array without an end, and how many bytes of it were read."""

        item = b'{"value": "' + b"x" * 500 + b'"}, '
        ready, served = b"[", 0

        def read(self, size):
            self.ready += self.item * (size // len(self.item) + 1)
            chunk, self.ready = self.ready[:size], self.ready[size:]
            self.served += size
            return chunk

    file = Endless()
    for number, item in enumerate(itertools.islice(stream_objects(file, chunk_size=1000), 500), start=1):
        assert item == {"value": "x" * 500}
        assert file.served - number * len(file.item) <= 2 * (1000 + len(file.item))


def test_an_object_far_larger_than_a_chunk_is_parsed_a_few_times_only():
    class Counting(io.BytesIO):
        reads = 0

        def read(self, size=-1):
            self.reads += 1
            return super().read(size)

    large = {"value": "x" * 1_000_000}
    file = Counting(json.dumps([large]).encode())
    assert list(stream_objects(file, chunk_size=100)) == [large]
    assert file.reads < 20
