"""What a result rests on: machine, library versions, code and command."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_FOLDER = Path(__file__).parent

_TIMED = ("entmtp_env", "policies")
"""The packages that run while the clock of a decode step or of a decision does."""

_LIBRARIES = ("entmtp-env", "torch", "transformers", "numpy", "gymnasium", "stable-baselines3")


def describe_run() -> dict[str, Any]:
    """Time, command, machine, library versions and code, as plain JSON values."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "machine": describe_machine(),
        "libraries": {"python": platform.python_version()} | _versions(),
        "code": describe_code(),
    }


@functools.cache
def describe_code() -> dict[str, str | bool]:
    """Which version of this code runs, as it is at the first call.

    Returns:
        ``fingerprint``, a hash of the sources that timings depend on; ``commit`` where it is known, from git
        in a checkout or from the record of an installation by version control (PEP 610); in a checkout
        ``changed``, whether files differ from it.
    """
    return {"fingerprint": _sources_fingerprint()} | (_checkout() or _installed_commit())


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


def _sources_fingerprint() -> str:
    digest = hashlib.sha256()
    for package in _TIMED:
        root = _FOLDER.parent / package
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _checkout() -> dict[str, str | bool]:
    """Commit and changes when this file is in a commit of the repository around it; else nothing."""
    # Anything may be around an installation, so the repository must have this very file.
    known = _git("rev-parse", "HEAD", f"HEAD:./{Path(__file__).name}")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    if known is None or changes is None:
        return {}
    return {"commit": known.split()[0], "changed": bool(changes)}


def _git(*words: str) -> str | None:
    """What git says in this folder; ``None`` when there is none or it refuses."""
    # Without the lock, so that it disturbs no command of the user's.
    command = ("git", "--no-optional-locks", *words)
    try:
        done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout


def _installed_commit() -> dict[str, str | bool]:
    try:
        origin = json.loads(metadata.distribution("entmtp-env").read_text("direct_url.json") or "{}")
        return {"commit": str(origin["vcs_info"]["commit_id"])}
    except (metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return {}
