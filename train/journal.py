"""The rows of a run that takes long, on disk as they come, so that the same command goes on with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entmtp_env.files import parse_json, write_text_atomically


class Journal:
    """JSON lines: first the settings that the rows depend on, then the rows.

    Args:
        path: The file; it is made with the first row.
        settings: JSON values; a file that was begun with others is refused.

    Attributes:
        rows: The rows, those of earlier runs first.

    Raises:
        ValueError: When the file is damaged or was begun with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, json.loads(json.dumps(settings))
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            self.rows = self._read()

    def add(self, row: dict[str, Any]) -> None:
        """Add a row; it is in the file when this returns."""
        self.rows.append(row)
        lines = [json.dumps(line, separators=(",", ":")) for line in (self._settings, *self.rows)]
        # The whole file, as it is small: a kill leaves no torn line.
        write_text_atomically(self._path, "\n".join(lines) + "\n")

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_bytes().splitlines()
            known, *rows = (parse_json(line, "a line of it") for line in lines)
            changed = [
                f"{name} was {known.get(name)!r} and is {self._settings.get(name)!r}"
                for name in {**self._settings, **known}
                if known.get(name) != self._settings.get(name)
            ]
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged ({error!r}); delete it to start anew") from error
        if changed:
            raise ValueError(
                f"{self._path} was begun with other settings: {'; '.join(changed)}; go on with those, or "
                "give another --out"
            )
        return rows
