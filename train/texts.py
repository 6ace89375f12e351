"""Training texts: token ids that the base model wrote itself, as JSON lines (plain or gzip)."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from entmtp_env.files import parse_json


@dataclass(frozen=True)
class Text:
    """One reply.

    Attributes:
        prompt: Token ids of the prompt, chat template included.
        reply: Token ids the model generated; ends with EOS where it stopped by itself.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and reply."""
        return self.prompt + self.reply


def read_texts(path: str | Path) -> list[Text]:
    """Read texts: one object a line, ``p`` the prompt's and ``g`` the reply's token ids.

    A text without a prompt, or with less than two reply tokens, teaches nothing and is left out.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When a line is not such an object, which the message names, or the file is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f'no texts at {path}; have the base model write some, {{"p": [ids], "g": [ids]}} a line'
        )
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            texts = [_parse(line, f"{path}, line {number}") for number, line in enumerate(file, start=1)]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged or no text file ({error}); where 'train distill' was interrupted, the same "
            "command again cuts the torn end off and writes the rest"
        ) from error
    return [text for text in texts if text.prompt and len(text.reply) > 1]


def _parse(line: bytes, where: str) -> Text:
    try:
        row = parse_json(line, where)
        return Text(_token_ids(row["p"]), _token_ids(row["g"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{where}: expected {{"p": [token ids], "g": [token ids]}} ({error!r})') from error


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(token) is not int or token < 0 for token in value):
        raise TypeError("token ids are whole numbers >= 0, in a list")
    return tuple(value)


def texts_fingerprint(texts: Sequence[Text]) -> str:
    """Hash of all tokens in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr((text.prompt, text.reply)).encode())
    return digest.hexdigest()[:16]


def first_own_token(texts: Sequence[Text]) -> int:
    """Where the prompts begin to differ: behind a chat template's beginning; at least 1."""
    prompts = [text.prompt for text in texts]
    # What the first and the last in order share, all share.
    pairs = zip(min(prompts), max(prompts), strict=False)
    return max(1, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def frequent_tokens(texts: Sequence[Text], size: int, vocab_size: int) -> tuple[list[int], float]:
    """The draft vocabulary: the most frequent tokens of the replies (FR-Spec, arXiv 2502.14856).

    Args:
        texts: Texts the base model wrote.
        size: Tokens to keep; when fewer occur, it is filled up with the lowest other ids.
        vocab_size: Size of the base's vocabulary.

    Returns:
        The ids from the most to the least frequent, and the share of reply tokens that they cover.
    """
    counts = Counter(token for text in texts for token in text.reply)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))[:size]
    covered = sum(counts[token] for token in ranked)
    return ranked, covered / max(1, counts.total())
