"""Figures that took minutes are not replaced by chance."""

from __future__ import annotations

from pathlib import Path


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Check, before anything is measured, that a file may be written.

    Raises:
        FileExistsError: When it is there already and not to be replaced.
    """
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out}: there already; choose another --out, or add --overwrite")
