"""Policy files that come with the package: calibrated or trained for the default model and a shipped bank."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped_policies() -> dict[tuple[str, str], Path]:
    """Files by name of the policy and of the bank that it belongs to."""
    folder = Path(str(resources.files("policies") / "data"))
    return {(path.stem, path.parent.name): path for path in sorted(folder.glob("*/*"))}


def policy_path(policy: str, file: str) -> Path:
    """The file meant by ``policy@file``: a path, or the name of a bank that a shipped one belongs to."""
    path = Path(file)
    return path if path.exists() else shipped_policies().get((policy, file), path)
