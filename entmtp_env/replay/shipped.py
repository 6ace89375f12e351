"""Recordings by name: those that come with the package, files, halves of them, and several as one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from entmtp_env.prompts import SPLITS, half
from entmtp_env.replay.recording import Recording


def shipped_recordings() -> dict[str, Path]:
    """Files of the recordings that come with the package, by the name of the prompt set."""
    folder = Path(str(resources.files("entmtp_env") / "data" / "recordings"))
    return {path.stem: path for path in sorted(folder.glob("*.npz"))}


def load_recording(specs: str | Sequence[str]) -> Recording:
    """Load a recording, or several as one.

    Args:
        specs: One or more of: the name of a shipped recording or a path that ends in ``.npz``, then
            optionally ``:calibration`` (the first half of the texts; it takes the middle one) or
            ``:evaluation``.

    Raises:
        FileNotFoundError: When it is neither a known name nor a file.
        ValueError: When a file is damaged, or recordings do not belong together.
    """
    names = [specs] if isinstance(specs, str) else list(specs)
    if not names:
        raise ValueError("name at least one recording")
    loaded = [_load(spec) for spec in names]
    return loaded[0] if len(loaded) == 1 else Recording.concatenate(loaded)


def _load(spec: str) -> Recording:
    name, colon, split = spec.rpartition(":")
    if not colon or split not in SPLITS:
        name, split = spec, ""
    shipped = shipped_recordings()
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise FileNotFoundError(
            f"no recording {name!r}: expected one of {', '.join(shipped)}, or the path of a file made by "
            "'python -m train record'"
        )
    recording = Recording.load(path)
    if not split:
        return recording
    chosen = half(range(len(recording.texts)), split)
    if not chosen:
        raise ValueError(f"{spec!r} has no texts: the recording has only {len(recording.texts)}")
    return recording.select(chosen)
