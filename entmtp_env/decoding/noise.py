"""Counter-based Gumbel noise: the noise of a position depends on the seed and the position alone."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def noise_seed(name: str) -> int:
    """Key of the noise of a text, from what tells it from all others; 0 <= key < 2**64."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def gumbel_noise(seed: int, position: int, size: int) -> npt.NDArray[np.float32]:
    """Standard Gumbel noise for one absolute position.

    ``argmax(logits / T + noise)`` is then a sample from the softmax at temperature T (the Gumbel-max
    trick), and the same whichever tree is verified and in which order positions are visited.

    Args:
        seed: Key, 0 <= seed < 2**64.
        position: Counter, >= 0.
        size: Number of values, the vocabulary.

    Returns:
        Shape ``(size,)``, equal on every platform and device: raw Philox words, not NumPy's distributions,
        whose streams may change between versions.
    """
    bits = np.random.Philox(key=seed, counter=position << 128).random_raw((size + 1) // 2)
    words = bits.astype("<u8", copy=False).view("<u4")[:size]
    exponential = -np.log((words + 0.5) * 2.0**-32)
    return -np.log(exponential).astype(np.float32)
