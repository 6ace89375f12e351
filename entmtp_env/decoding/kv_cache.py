"""The key-value cache: preallocated once, written and compacted in place."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values of all layers for one sequence of fixed capacity.

    Rows ``[0, length)`` are committed. A forward pass writes its rows behind them; :meth:`keep` then
    commits some of these and forgets the rest.

    Args:
        num_layers: Decoder layers.
        num_kv_heads: Key-value heads (fewer than query heads under grouped-query attention).
        head_dim: Width of a head.
        capacity: Rows that fit; fixed.
        dtype: Element type.
        device: Where the cache lives.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = capacity
        self.length = 0
        self._data = torch.zeros(num_layers, 2, num_kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self._data]

    def require(self, rows: int) -> None:
        """Check that ``rows`` more rows fit.

        Raises:
            ValueError: When they do not.
        """
        if self.length + rows > self.capacity:
            raise ValueError(
                f"KV cache full: {self.length} rows committed, {rows} more asked for, capacity "
                f"{self.capacity}; end the text here or make a session with a larger capacity"
            )

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write rows behind the committed ones.

        Args:
            layer: Which layer.
            keys: Shape ``(kv_heads, rows, head_dim)``.
            values: Same shape.

        Returns:
            Views of all keys and values so far, ``(kv_heads, length + rows, head_dim)``.
        """
        all_keys, all_values = self._layers[layer]
        end = self.length + keys.shape[1]
        all_keys[:, self.length : end] = keys
        all_values[:, self.length : end] = values
        return all_keys[:, :end], all_values[:, :end]

    def keep(self, rows: list[int]) -> None:
        """Commit the given rows of the last pass (ascending, counted from ``length``), in place."""
        start, count = self.length, len(rows)
        if rows != list(range(count)):
            index = torch.tensor(rows, device=self._data.device) + start
            self._data[:, :, :, start : start + count] = self._data.index_select(3, index)
        self.length += count

    def clear(self) -> None:
        """Forget everything; the memory stays."""
        self.length = 0
