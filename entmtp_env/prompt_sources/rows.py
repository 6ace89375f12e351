"""The rows of a data set's file: JSON Lines, a JSON array, or Parquet."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from entmtp_env.files import parse_json
from entmtp_env.prompt_sources.json_stream import CutOffError, stream_objects
from entmtp_env.prompt_sources.unavailable import PromptsUnavailableError

Row = tuple[int, dict[str, Any]]
"""Number of the row, from 1 (the line in JSON Lines), and its columns."""

SUFFIXES = (".jsonl", ".json", ".parquet")
"""File formats that :func:`file_rows` reads."""


def file_rows(path: Path) -> Iterator[Row]:
    """Read a file row by row.

    Args:
        path: ``.jsonl`` with an object a line, ``.json`` with an array of objects, or ``.parquet``.

    Raises:
        FileNotFoundError: When the file does not exist.
        PromptsUnavailableError: When it is Parquet and there is no ``pyarrow`` to read it.
        ValueError: When the name ends otherwise, or the content is not of that format.

    Warns:
        UserWarning: When an array breaks off: how many objects were kept and lost.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"cannot read {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FileNotFoundError(f"no prompt file {path}: check the path")
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_rows(path), start=1)
        return
    with path.open("rb") as file:
        read = json_line_rows if path.suffix == ".jsonl" else json_array_rows
        yield from read(file, str(path))


def json_line_rows(lines: Iterable[bytes], source: str) -> Iterator[Row]:
    """Parse JSON Lines, skipping blank ones.

    Args:
        lines: The lines, as bytes: a string may hold the Unicode line separators that text would break at.
        source: Where they are from, for messages.

    Raises:
        ValueError: When a line is not a JSON object in UTF-8.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line, f"{source}, line {number}")
        except ValueError as error:
            raise ValueError(f"{error}; write one object a line") from error
        if not isinstance(row, dict):
            raise ValueError(f"{source}, line {number} is not a JSON object: write one a line")
        yield number, row


def json_array_rows(file: IO[bytes], source: str) -> Iterator[Row]:
    """Parse a JSON array of objects; of one that breaks off, the complete objects.

    Args:
        file: UTF-8 text.
        source: Where it is from, for messages.

    Raises:
        ValueError: When it is not an array of objects.

    Warns:
        UserWarning: When it breaks off: how many objects were kept and lost.
    """
    number = 0
    try:
        for number, row in enumerate(stream_objects(file), start=1):
            yield number, row
    except CutOffError as error:
        warnings.warn(
            f"{source} is cut off: kept {number:,} complete entries, lost {error.incomplete} incomplete and "
            "all that may have followed",
            stacklevel=2,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}, after entry {number}: {error}") from error


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow.lib import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise PromptsUnavailableError(
            f"reading {path} needs pyarrow: pip install 'entmtp-env[datasets]'"
        ) from error
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    # Damage is told as either.
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
