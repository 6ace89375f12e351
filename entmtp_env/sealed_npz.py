"""NumPy archives that carry a header and a seal: one changed bit anywhere in the file is found at loading."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from entmtp_env.files import atomic_path, parse_json

_HEADER = "header"
_SEAL_SIZE = 64


def save_sealed(
    path: str | Path, kind: str, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Write a compressed ``.npz`` atomically; ``numpy.load`` reads it, too.

    The archive's comment is the SHA-256 of all bytes before it.

    Args:
        path: The file.
        kind: What it is, such as ``"recording"``.
        header: JSON values, kept as the array ``header`` of UTF-8 bytes.
        arrays: The data, by names other than ``header``.

    Raises:
        ValueError: When the header has a number that is not finite, which JSON has no word for; nothing is
            written.
    """
    try:
        text = json.dumps({"kind": kind, **header}, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{path} is not written: the header of the {kind} is no JSON: {error}") from error
    buffer = io.BytesIO()
    parts: dict[str, Any] = {_HEADER: np.frombuffer(text.encode(), dtype=np.uint8), **arrays}
    np.savez_compressed(buffer, **parts)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"0" * _SEAL_SIZE
    body = buffer.getvalue()[:-_SEAL_SIZE]
    with atomic_path(path) as temporary:
        temporary.write_bytes(body + _seal(body))


def load_sealed(path: str | Path, kind: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Read what :func:`save_sealed` wrote; nothing in a file is executed.

    Args:
        path: The file.
        kind: What it must be.

    Returns:
        Header and arrays.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When it is cut off, changed, or something else.
    """
    data = Path(path).read_bytes()
    body, seal = data[:-_SEAL_SIZE], data[-_SEAL_SIZE:]
    if not body or seal != _seal(body):
        raise ValueError(f"{path} is damaged or is no {kind} of this package; fetch or make it again")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: np.asarray(archive[name]) for name in archive.files}
        header = parse_json(arrays.pop(_HEADER).tobytes(), "its header")
    # Anybody can seal a file, so it can fail in any way.
    except Exception as error:
        raise ValueError(f"{path} is sealed, but is no {kind} of this package: {error!r}") from error
    if not isinstance(header, dict) or header.pop("kind", None) != kind:
        raise ValueError(f"{path} is not a {kind}")
    return header, arrays


def _seal(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
