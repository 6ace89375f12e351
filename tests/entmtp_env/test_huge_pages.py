import ctypes
import mmap
import random
import sys
from types import SimpleNamespace

import pytest
import torch

from entmtp_env.huge_pages import _PAGE, _mapped, _whole_pages, _without, on_huge_pages

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
CPU = torch.device("cpu")


@pytest.fixture
def asked(monkeypatch):
    """What is asked for, as (start, end, advice)."""
    calls = []

    def madvise(start, size, advice):
        calls.append((start.value, start.value + size.value, advice))
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(madvise=madvise))
    return calls


def mapping(size):
    """Fresh private memory, and its address."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[0] = 1
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


@LINUX
def test_memory_that_was_mapped_meanwhile_is_asked_for_and_no_other(asked):
    other, elsewhere = mapping(40 << 20)
    with on_huge_pages(CPU):
        memory, address = mapping(40 << 20)
    assert {advice for *_, advice in asked} == {14, 25}
    inside = [(start, end) for start, end, _ in asked if start <= address + (20 << 20) < end]
    assert len(inside) == 2
    assert all(start % _PAGE == 0 == end % _PAGE for start, end, _ in asked)
    assert not any(start <= elsewhere + (20 << 20) < end for start, end, _ in asked)
    assert (memory[0], other[0]) == (1, 1)


@LINUX
@pytest.mark.parametrize(("size", "device"), [(1 << 20, "cpu"), (40 << 20, "cuda")])
def test_little_memory_and_other_devices_are_left_alone(asked, size, device):
    with on_huge_pages(torch.device(device)):
        memory, _ = mapping(size)
    assert asked == []
    assert memory[0] == 1


@LINUX
def test_it_can_be_switched_off(asked, monkeypatch):
    monkeypatch.setenv("ENTMTP_HUGE_PAGES", "0")
    with on_huge_pages(CPU):
        memory, _ = mapping(40 << 20)
    assert asked == []
    assert memory[0] == 1


@LINUX
def test_really_asking_changes_no_content():
    with on_huge_pages(CPU):
        weights = torch.arange(10_000_000)
    assert torch.equal(weights, torch.arange(10_000_000))


def test_where_there_are_no_maps_nothing_happens(asked, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _mapped() == []
    with on_huge_pages(CPU):
        torch.zeros(10_000_000)
    assert asked == []


def regions(rng, count):
    points = sorted(rng.sample(range(100), 2 * count))
    return list(zip(points[::2], points[1::2], strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_differences_are_those_of_sets(seed):
    rng = random.Random(seed)
    some, others = regions(rng, 5), regions(rng, 6)

    def covered(own):
        return {n for start, end in own for n in range(start, end)}

    left = _without(some, others)
    assert covered(left) == covered(some) - covered(others)
    assert left == sorted(left)
    assert all(start < end for start, end in left)


def test_whole_pages_lie_within():
    assert _whole_pages((5, 3 * _PAGE + 1)) == (_PAGE, 3 * _PAGE)
    assert _whole_pages((_PAGE, 2 * _PAGE)) == (_PAGE, 2 * _PAGE)
    start, end = _whole_pages((5, _PAGE - 1))
    assert start == end
