"""Forked workers, as those of ``AsyncVectorEnv``, must not wait for threads that a fork does not copy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from threading import RLock


def one_thread_after_fork() -> None:
    """Let PyTorch run on one thread in every process forked from now on.

    OpenMP's worker threads do not survive a fork, so the first parallel operation of a child whose parent has
    used PyTorch would hang for ever. Workers share the cores anyway.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def fork_only_between(locks: Callable[[], Iterable[RLock]]) -> None:
    """Let every fork from now on wait until no other thread holds one of ``locks``.

    One that was held would never be released in the child, and what it guards would be half done there.

    Args:
        locks: Gives the locks, in the order in which threads acquire them; it is called at the fork.
    """
    held: list[RLock] = []

    def acquire() -> None:
        for lock in locks():
            lock.acquire()
            held.append(lock)

    def release() -> None:
        while held:
            held.pop().release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)
