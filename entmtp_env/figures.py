"""Figures on disk."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from entmtp_env.files import atomic_path


def save_figure(path: str | Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
