"""The objects of a JSON array one by one, also of a file that breaks off."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from entmtp_env.files import JSON_DECODER

_SPACE = re.compile(r"[ \t\r\n]*")
_ENDS = re.compile(r"[ \t\r\n]*[\\\w.+-]*\Z")
"""At the place of an error that more text may cure: the end, or a part of a word, number or escape there."""


class CutOffError(ValueError):
    """The file ends before its array does.

    Args:
        incomplete: Objects that were begun and not finished: 0 or 1.
        reason: What the JSON parser missed.
    """

    def __init__(self, incomplete: int, reason: str) -> None:
        super().__init__(f"the file ends inside its array ({reason})")
        self.incomplete = incomplete


def stream_objects(file: IO[bytes], chunk_size: int = 1 << 20) -> Iterator[dict[str, Any]]:
    """Parse a JSON array of objects in constant memory: that of its largest object and a chunk.

    Args:
        file: UTF-8 text; what follows the array is not read.
        chunk_size: Bytes to read at once, at least 1.

    Yields:
        The complete objects, in order.

    Raises:
        CutOffError: After the last complete object, when the array does not end.
        ValueError: When the text is not an array of objects, an object is malformed, or it is not UTF-8.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    parse = JSON_DECODER.raw_decode
    buffer, position, allowed, reason = "", 0, "[", "expected ["
    while True:
        position = _SPACE.match(buffer, position).end()  # type: ignore[union-attr]
        mark = buffer[position : position + 1]
        if mark not in allowed:
            raise ValueError(f"expected {' or '.join(allowed)} of a JSON array of objects, got {mark!r}")
        if mark == "]":
            return
        if mark == "{":
            try:
                item, position = parse(buffer, position)
            except json.JSONDecodeError as error:
                reason = error.msg
                if not (_ENDS.match(buffer, error.pos) or reason.startswith("Unterminated string")):
                    around = buffer[max(position, error.pos - 20) : error.pos + 20]
                    raise ValueError(f"the next object is malformed: {reason} near {around!r}") from None
            else:
                yield item
                allowed, reason = ",]", "expected , or ]"
                continue
        elif mark:
            position, allowed, reason = position + 1, "{]" if mark == "[" else "{", "expected {"
            continue
        # As much again as is waiting, so that a large object is not parsed over and over.
        chunk = file.read(max(chunk_size, len(buffer) - position))
        if not chunk:
            raise CutOffError(int(mark == "{"), reason)
        buffer, position = buffer[position:] + decode(chunk), 0
