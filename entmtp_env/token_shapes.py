"""Shapes of tokens, which the group ``token`` of the features tells of the root."""

from __future__ import annotations

from typing import Any

from entmtp_env.features import root_shape


class TokenShapes(dict[int, tuple[bool, ...]]):
    """:func:`~entmtp_env.features.root_shape` by token id, worked out when it is first asked for.

    Args:
        tokenizer: A ``transformers`` tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._before = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._length = len(tokenizer.decode(self._before))

    def __missing__(self, token: int) -> tuple[bool, ...]:
        """Decode the token behind another: SentencePiece drops the space that a text begins with."""
        shape = root_shape(self._tokenizer.decode([*self._before, token])[self._length :])
        return self.setdefault(token, shape)
