"""Files that are written whole or not at all, and JSON that is read with suspicion."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_MAX_BYTES = 1 << 28
_MAX_DEPTH = 64


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` and move it there when the block ends without an error.

    A reader sees the old file or the whole new one, never a part. The folder is created when missing; after
    an error the temporary file is removed.

    Raises:
        OSError: When the disk is full; the message says what to do.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with full_disk_named(target):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def refuse_existing(*paths: Path, overwrite: bool) -> None:
    """Check, before the work begins, that files may be written: what took minutes is not replaced by chance.

    Raises:
        FileExistsError: When one is there already and not to be replaced.
    """
    there = [str(path) for path in paths if path.exists()]
    if there and not overwrite:
        raise FileExistsError(f"{', '.join(there)}: there already; choose another --out, or add --overwrite")


def write_text_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def full_disk_named(path: str | Path) -> Iterator[None]:
    """Let an error of a full disk, quota or file size limit name the file that was to be written.

    Args:
        path: The file.

    Raises:
        OSError: With the error number of the cause; other errors pass as they are.
    """
    try:
        yield
    except Exception as error:
        # safetensors puts it in words, PyTorch raises another error on top.
        causes = (error, error.__context__)
        numbers = [getattr(cause, "errno", None) for cause in causes]
        number = next((n for n in _FULL if n in numbers or os.strerror(n) in str(error)), None)
        if number is None:
            raise
        raise OSError(
            number, f"no room is left to write {path}: free some space there and run it again"
        ) from error


def read_json(path: str | Path) -> Any:
    """Read a JSON file as :func:`parse_json` does.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When it is not such JSON.
    """
    with Path(path).open("rb") as file:
        return parse_json(file.read(_MAX_BYTES + 1), str(path))


def parse_json(text: bytes | str, source: str) -> Any:
    """Parse JSON from a stranger: no NaN, no key twice, no half of a surrogate pair, bounded.

    Args:
        text: At most 256 MiB of UTF-8, nested at most 64 deep.
        source: Where it is from, for messages.

    Raises:
        ValueError: When it is anything else; the message says what is wrong with it.
    """
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        document = JSON_DECODER.decode(text)
        # An escape such as \ud800 alone is JSON, and no text.
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
        if text.count("[") + text.count("{") > _MAX_DEPTH:
            _check_depth(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not JSON in UTF-8 ({error})") from error
    return document


def _check_depth(document: Any) -> None:
    """Whoever walks through it, such as ``repr``, must not exhaust the stack."""
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for part in level
            for child in (part.values() if isinstance(part, dict) else part)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return document


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text} is too large")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


JSON_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse)
"""Decodes what :func:`parse_json` does but for its bounds."""
