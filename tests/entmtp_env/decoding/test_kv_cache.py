import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding.kv_cache import KVCache

LAYERS, HEADS, WIDTH = 2, 3, 2


def make(capacity=16):
    return KVCache(LAYERS, HEADS, WIDTH, capacity, torch.float32, torch.device("cpu"))


def rows(values, layer, part):
    """Rows that tell layer, keys or values, head and row apart, ``(heads, rows, width)``."""
    base = torch.tensor(values, dtype=torch.float32).view(1, -1, 1) + 1000 * layer + 500 * part
    return base + torch.arange(HEADS).view(-1, 1, 1) * 0.25 + torch.arange(WIDTH) * 0.125


def write(cache, values):
    views = cache.behind(len(values))
    for layer, (new, _, _) in enumerate(views):
        new.copy_(torch.stack((rows(values, layer, 0), rows(values, layer, 1))))
    return [(keys, stored) for _, keys, stored in views]


def assert_holds(cache, values):
    """Read the committed rows back by writing nothing."""
    for layer, parts in enumerate(write(cache, [])):
        for part, stored in enumerate(parts):
            assert torch.equal(stored, rows(values, layer, part))


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=6))
def test_keep_equals_a_list(passes):
    cache, expected, counter = make(36), [], 0
    for kept in passes:
        values = list(range(counter, counter + len(kept)))
        counter += len(kept)
        write(cache, values)
        index = [row for row, keep in enumerate(kept) if keep]
        cache.keep(index)
        expected += [values[row] for row in index]
        assert cache.length == len(expected)
    assert_holds(cache, expected)


def test_views_show_the_committed_rows_and_the_new():
    cache = make()
    write(cache, [1, 2, 3])
    cache.keep([0, 2])
    keys, values = write(cache, [7])[1]
    assert torch.equal(keys, rows([1, 3, 7], 1, 0))
    assert torch.equal(values, rows([1, 3, 7], 1, 1))


def test_keep_works_in_place():
    """Trap 11: no reallocation on commit."""
    cache = make()
    addresses = {tensor.data_ptr() for pair in write(cache, [1, 2, 3, 4]) for tensor in pair}
    cache.keep([0, 1, 3])
    write(cache, [5, 6])
    cache.keep([1])
    assert {tensor.data_ptr() for pair in write(cache, []) for tensor in pair} == addresses


def test_require_names_the_numbers():
    cache = make(8)
    write(cache, [0] * 6)
    cache.keep(list(range(6)))
    cache.behind(2)
    with pytest.raises(ValueError, match="6 rows committed, 3 more asked for, capacity 8"):
        cache.behind(3)


def test_clear_forgets_the_rows():
    """Trap 6: the next text starts at length 0."""
    cache = make()
    write(cache, [1, 2])
    cache.keep([0, 1])
    cache.clear()
    assert cache.length == 0
    write(cache, [9])
    cache.keep([0])
    assert_holds(cache, [9])
