"""A file of texts that grows while they are written, and loses none of them to a kill."""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from entmtp_env.files import full_disk_named, parse_json

_CHUNK_TEXTS, _CHUNK_SECONDS = 8, 10.0
_BLOCK = 1 << 16


class TextLog:
    """JSON lines in a ``.gz`` file; every few texts are a gzip member of their own, forced to the disk.

    A process killed in the middle of a member leaves a torn one at the end, which is cut off here. A context
    manager: what is still in memory is written when the block ends.

    Args:
        path: The file; made when missing.

    Attributes:
        written: Number of reply tokens of each text by its id: those in the file and those added.

    Raises:
        ValueError: When the file is damaged other than by a torn end.

    Example:
        >>> with TextLog(Path("texts.jsonl.gz")) as log:               # doctest: +SKIP
        ...     if "math/7#0" not in log.written:
        ...         log.add({"p": [1, 2], "g": [3, 4], "id": "math/7#0"})
    """

    def __init__(self, path: Path) -> None:
        self.written: dict[str, int] = {}
        self._path, self._rows, self._last = path, list[Mapping[str, Any]](), time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        data, end = path.read_bytes(), 0
        try:
            for content, stop in _complete_members(data):
                for line in content.splitlines():
                    row = parse_json(line, "a line of it")
                    self.written[row["id"]] = len(row["g"])
                end = stop
        except (zlib.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is damaged behind byte {end} ({error!r}); cut it there to write the rest again: "
                f"truncate --size={end} {path}"
            ) from error
        os.truncate(path, end)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a text; it is in the file 8 texts later at the latest, or with the first one after 10 s.

        Args:
            row: An object for JSON with the keys ``id`` (unique) and ``g`` (the reply's token ids) at least.
        """
        self.written[row["id"]] = len(row["g"])
        self._rows.append(row)
        if len(self._rows) == _CHUNK_TEXTS or time.monotonic() - self._last >= _CHUNK_SECONDS:
            self._write()

    def __enter__(self) -> TextLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()

    def _write(self) -> None:
        # Forgotten first: rows whose writing was interrupted must not be written a second time on exit.
        rows, self._rows, self._last = self._rows, [], time.monotonic()
        if rows:
            lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
            with full_disk_named(self._path), self._path.open("ab") as file:
                file.write(gzip.compress(lines.encode(), mtime=0))
                file.flush()
                os.fsync(file.fileno())


def _complete_members(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Content and end of each gzip member, up to a torn one."""
    end = 0
    while end < len(data):
        member, content, position = zlib.decompressobj(wbits=31), b"", end
        while not member.eof and position < len(data):
            content += member.decompress(data[position : position + _BLOCK])
            position += _BLOCK
        if not member.eof:
            return
        end = min(position, len(data)) - len(member.unused_data)
        yield content, end
