"""Rotary position embeddings from precomputed tables."""

from __future__ import annotations

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of every position up to a capacity.

    Args:
        inverse_frequencies: Shape ``(head_dim / 2,)``, radians per position.
        capacity: Number of positions.
        scaling: Factor on cosine and sine (``attention_scaling`` of transformers; 1 for plain RoPE).
        dtype: Type of the tables; angles are computed in float32.
    """

    def __init__(
        self, inverse_frequencies: Tensor, capacity: int, scaling: float, dtype: torch.dtype
    ) -> None:
        positions = torch.arange(capacity, dtype=torch.float32, device=inverse_frequencies.device)
        angles = torch.outer(positions, inverse_frequencies.float())
        cos, sin = angles.cos() * scaling, angles.sin() * scaling
        self._cos = torch.cat((cos, cos), dim=-1).to(dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(dtype)
        self._half = inverse_frequencies.numel()

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines at ``positions`` of any shape, with a last axis of ``head_dim`` added."""
        return self._cos[positions], self._sin[positions]

    def over_qkv(self, positions: Tensor, rotated: int, plain: int) -> tuple[Tensor, Tensor]:
        """Tables that turn queries, keys and values of a fused product in one go.

        Args:
            positions: Shape ``(n,)``.
            rotated: Heads of queries and keys, which come first.
            plain: Heads of values, which stay as they are.

        Returns:
            Cosines and signed sines, ``(n, rotated + plain, head_dim)``.
        """
        cos, sin = (table[:, None] for table in self.at(positions))
        return (
            torch.cat((cos.expand(-1, rotated, -1), torch.ones_like(cos).expand(-1, plain, -1)), dim=1),
            torch.cat((sin.expand(-1, rotated, -1), torch.zeros_like(sin).expand(-1, plain, -1)), dim=1),
        )

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate ``x``; its last axis is ``head_dim``, ``cos`` and ``sin`` broadcast against it."""
        return torch.addcmul(x * cos, x.roll(self._half, dims=-1), sin)
