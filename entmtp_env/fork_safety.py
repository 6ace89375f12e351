"""Forked workers, as those of ``AsyncVectorEnv``, must not wait for threads that a fork does not copy."""

from __future__ import annotations

import os
import sys


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
