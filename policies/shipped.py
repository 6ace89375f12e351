"""Policy files that come with the package: calibrated or trained for the default model and a shipped bank."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def shipped_policies() -> dict[tuple[str, str], Path]:
    """Files by name, the policy's or that of a variant of it, and by the bank that they belong to."""
    folder = Path(str(resources.files("policies") / "data"))
    return {(path.stem, path.parent.name): path for path in sorted(folder.glob("*/*"))}


def policy_path(policy: str, file: str) -> Path:
    """The file meant by ``policy@file``.

    Args:
        policy: Name of the policy.
        file: A path, or the name of a bank that a shipped one belongs to, with ``/<variant>`` behind it where
            there are several, as in ``learned@smollm2-pooled/ppo``.

    Raises:
        FileNotFoundError: When it is a folder.
    """
    bank, _, variant = file.partition("/")
    path = Path(file)
    if not path.is_file():
        path = shipped_policies().get((variant or policy, bank), path)
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder, not a policy file; write {policy}@{path}/<file>")
    return path
