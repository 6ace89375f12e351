"""Training texts: token ids that the base model wrote itself, as JSON lines (plain or gzip)."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


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

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When a line is not such an object; the message names it.
    """
    return list(_read_lines(Path(path)))


def _read_lines(path: Path) -> Iterator[Text]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
                text = Text(tuple(map(int, row["p"])), tuple(map(int, row["g"])))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f'{path}, line {number}: expected {{"p": [token ids], "g": [token ids]}} ({error!r})'
                ) from error
            if text.prompt and len(text.reply) > 1:
                yield text


def texts_fingerprint(texts: Sequence[Text]) -> str:
    """Hash of all tokens in order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(repr((text.prompt, text.reply)).encode())
    return digest.hexdigest()[:16]


def frequent_tokens(texts: Sequence[Text], size: int, vocab_size: int) -> tuple[list[int], float]:
    """The draft vocabulary: the most frequent tokens of the replies (FR-Spec, arXiv 2502.14856).

    Args:
        texts: Texts the base model wrote.
        size: Tokens to keep; when fewer occur, it is filled up with the lowest other ids.
        vocab_size: Size of the base's vocabulary.

    Returns:
        The ids in ascending order, and the share of reply tokens that they cover.
    """
    counts = Counter(token for text in texts for token in text.reply)
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))[:size]
    covered = sum(counts[token] for token in ranked)
    return sorted(ranked), covered / max(1, counts.total())
