"""What a result rests on: machine, library versions and command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("entmtp-env", "torch", "transformers", "numpy", "gymnasium", "stable-baselines3")


def describe_run() -> dict[str, Any]:
    """Time, command, machine and library versions, as plain JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "machine": describe_machine(),
        "libraries": {"python": platform.python_version()} | _versions(),
    }


def describe_machine() -> dict[str, Any]:
    """Processor, the cores that this process may use, PyTorch's threads, accelerator and system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
    }


def _processor() -> str:
    """The processor's name; ``platform`` knows it on few systems."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return versions
