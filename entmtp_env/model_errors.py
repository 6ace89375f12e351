"""Errors of a model and of its device, named by the text and the step that they happened in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "STATUS_ALLOC_FAILED")
"""In the messages of PyTorch's CPU allocator, of the CUDA driver, and of cuBLAS and cuDNN."""


@contextlib.contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Put a place before the messages of what can go wrong with a model; bugs pass as they are.

    Args:
        where: The place, such as ``"prompt 'q3'"``.

    Raises:
        ValueError: As raised within.
        FloatingPointError: As raised within: logits are not finite.
        MemoryError: When the device has no memory left, however it says so.
    """
    try:
        with named_shortage(where, "lower capacity, or choose another device"):
            yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except FloatingPointError as error:
        raise FloatingPointError(f"{where}: {error}") from error


@contextlib.contextmanager
def named_shortage(where: str, remedy: str) -> Iterator[None]:
    """Put a place before the message of a device that has no memory left; other errors pass as they are.

    Args:
        where: The place.
        remedy: What to do about it.

    Raises:
        MemoryError: When the device has no memory left, however it says so.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise MemoryError(f"{where}: no memory is left on the device ({reason}); {remedy}") from error


def _is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """The CPU's is a plain ``RuntimeError``, as bugs are."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        message in str(error) for message in _OUT_OF_MEMORY
    )
