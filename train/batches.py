"""The order in which texts are trained on: a function of the seed alone, so that a run can be resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from train.texts import Text

_POOL = 256


def epochs(
    texts: Sequence[Text], indices: Sequence[int], batch_tokens: int, seed: int
) -> Iterator[list[list[int]]]:
    """Endless epochs; each has every text once, in batches of about ``batch_tokens`` reply tokens.

    Texts of like length go together, sorted within random pools: little padding, yet different neighbours in
    every epoch.

    Args:
        texts: All texts.
        indices: Those to train on.
        batch_tokens: A batch is full when its replies have as many tokens.
        seed: Seed of the order.

    Yields:
        The batches of an epoch, as indices of texts.
    """
    rng = random.Random(seed)
    while True:
        order = rng.sample(indices, len(indices))
        pools = [order[i : i + _POOL] for i in range(0, len(order), _POOL)]
        batches = [batch for pool in pools for batch in _pack(texts, pool, batch_tokens)]
        rng.shuffle(batches)
        yield batches


def _pack(texts: Sequence[Text], pool: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    tokens = 0
    for index in sorted(pool, key=lambda i: len(texts[i].tokens)):
        batch.append(index)
        tokens += len(texts[index].reply)
        if tokens >= batch_tokens:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
