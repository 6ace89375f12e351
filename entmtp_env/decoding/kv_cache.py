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
        data = torch.empty(num_layers, 2, num_kv_heads, capacity, head_dim, dtype=dtype, device=device)
        # Written once here, or the system would hand out its pages in the middle of steps.
        self._data = data.zero_()

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

    def behind(self, rows: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Where a pass over ``rows`` more rows writes and reads, layer by layer.

        Args:
            rows: How many rows are to be written behind the committed ones.

        Returns:
            Per layer views: keys and values of the new rows ``(2, kv_heads, rows, head_dim)``, to be
            written; then all keys and all values up to them ``(kv_heads, length + rows, head_dim)``.

        Raises:
            ValueError: When they do not fit.
        """
        self.require(rows)
        end = self.length + rows
        new = self._data[:, :, :, self.length : end].unbind(0)
        keys, values = (self._data[:, half, :, :end].unbind(0) for half in (0, 1))
        return list(zip(new, keys, values, strict=True))

    def keep(self, rows: list[int]) -> None:
        """Commit the given rows of the last pass (ascending, counted from ``length``), in place."""
        start, count = self.length, len(rows)
        if rows != list(range(count)):
            index = torch.tensor(rows, device=self._data.device) + start
            self._data[:, :, :, start : start + count] = self._data.index_select(3, index)
        self.length += count

    def clear(self, erase: bool = False) -> None:
        """Forget everything; the memory stays.

        Args:
            erase: Overwrite it, too: a mask hides old rows from attention, but not a NaN in them.
        """
        self.length = 0
        if erase:
            self._data.zero_()
