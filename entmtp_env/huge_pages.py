"""Weights on huge pages: they are read from end to end in every step, and each page is an address to look up.

Memory is mapped in pages of 4 KiB unless a process asks for more, here by ``madvise`` behind what has been
allocated, whoever allocated it. That is a hint: where the system knows none, nothing happens. The environment
variable ``ENTMTP_HUGE_PAGES=0`` switches it off.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

Region = tuple[int, int]
"""First address, and the first behind the last."""

_PAGE = 2 << 20
_LEAST = 16 << 20
"""Bytes below which it is not worth the time."""
_ADVICE = (14, 25)
"""MADV_HUGEPAGE: from now on; MADV_COLLAPSE (Linux 6.1): at once, what is there already."""


@contextlib.contextmanager
def on_huge_pages(device: torch.device) -> Iterator[None]:
    """Ask for huge pages for all memory that is mapped meanwhile and still is at the end.

    Args:
        device: Where the weights are going to be; nothing is asked for others than the CPU.
    """
    before = _mapped()
    yield
    if device.type != "cpu" or os.environ.get("ENTMTP_HUGE_PAGES") == "0":
        return
    regions = [_whole_pages(region) for region in _without(_mapped(), before)]
    if sum(end - start for start, end in regions) < _LEAST:
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in regions:
        if start == end:
            continue
        for advice in _ADVICE:
            # Refused for some regions, such as locked ones, and by older systems.
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def _mapped() -> list[Region]:
    """Private anonymous memory of this process that can be written, by rising address."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists():
        return []
    regions = []
    for line in maps.read_text().splitlines():
        addresses, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights.startswith("rw") and rights.endswith("p") and inode == "0" and name in ([], ["[heap]"]):
            start, end = addresses.split("-")
            regions.append((int(start, 16), int(end, 16)))
    return regions


def _without(regions: list[Region], others: list[Region]) -> list[Region]:
    """What of some regions is in none of others; both by rising address."""
    left = []
    for start, end in regions:
        for first, last in others:
            if first < end and last > start:
                if first > start:
                    left.append((start, first))
                start = max(start, last)
        if start < end:
            left.append((start, end))
    return left


def _whole_pages(region: Region) -> Region:
    """The huge pages within a region; an empty region where there is none."""
    start, end = -(-region[0] // _PAGE) * _PAGE, region[1] // _PAGE * _PAGE
    return (start, end) if start < end else (start, start)
