"""Memory of a decode step of static shapes: allocated once, so that captured graphs may refer to it."""

from __future__ import annotations

import torch
from torch import Tensor

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.kv_cache import KVCache
from entmtp_env.decoding.noise import gumbel_noise


class StaticBuffers:
    """What the pieces of a step hand to one another, and the state that a step leaves to the next.

    All lives on the device, the number of committed tokens too. A piece reads some buffers and writes others,
    so running it twice is running it once; only :meth:`advance` moves on to the next step.

    Args:
        backbone: The base model.
        heads: Draft heads attached to it.
        cache: The base's KV cache; its memory is shared.
        prefix_cache: That of the prefix layer, where there is one.
        max_nodes: Nodes of the largest tree.

    Attributes:
        length: Committed tokens, ``(1,)``.
        root: Token chosen behind them, ``(1,)``.
        state: What the heads read of the base, ``(hidden_size,)``.
        next_root: Root of the next step, ``(1,)``.
        next_state: Its state, ``(hidden_size,)``.
        accepted: Rows that the next step finds committed more than this one, ``(1,)``.
        tokens: Root and drafts, ``(max_nodes + 1,)``.
        hidden: Their hidden states, ``(max_nodes + 1, hidden_size)``.
        logits: Their logits, ``(max_nodes + 1, vocab_size)``.
        last: The last accepted row, ``(1,)``.
        chosen: The token that follows each row when the path ends there, ``(max_nodes + 1,)``.
        path_logits: Logits along the accepted path, ``(depth + 1, vocab_size)``.
        signals: Confidence and entropy (÷ ln V′) along the drafted greedy chain, float32 ``(2, depth)``.
        result: What the host reads: accepted rows, whether the first draft stands (-1: there is none), then
            of each row of the path its token, the token that follows it, and whether its logits are finite,
            one kind behind the other; int64 ``(2 + 3 * (depth + 1),)``.
        noise: Gumbel noise of the positions ahead.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: DraftHeads,
        cache: KVCache,
        prefix_cache: KVCache | None,
        max_nodes: int,
    ) -> None:
        device, width, vocab = backbone.device, backbone.config.hidden_size, backbone.config.vocab_size
        rows, self.path_rows = max_nodes + 1, heads.config.depth + 1

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        def real(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=backbone.dtype, device=device)

        # (layers, 2, kv_heads, capacity, head_dim)
        self.kv = cache._data
        self.prefix_kv = None if prefix_cache is None else prefix_cache._data
        self.length, self.root, self.next_root, self.accepted = whole(1), whole(1), whole(1), whole(1)
        self.state, self.next_state = real(width), real(width)
        self.last, self.chosen = whole(1), whole(rows)
        self.tokens, self.hidden, self.logits = whole(rows), real(rows, width), real(rows, vocab)
        self.path_logits = real(self.path_rows, vocab)
        self.signals = torch.zeros(2, heads.config.depth, device=device)
        self.result = whole(2 + 3 * self.path_rows)
        self.noise = NoiseRing(self.path_rows, vocab, device)

    def load(self, length: int, root: int, state: Tensor) -> None:
        """Take over a state that was made outside, by a prefill or an eager step."""
        self.length.fill_(length)
        self.accepted.zero_()
        self.next_root.fill_(root)
        self.next_state.copy_(state)
        self.advance()

    def advance(self) -> None:
        """Move on to the next step."""
        self.length.add_(self.accepted)
        self.accepted.zero_()
        # A row of this tree may be none of the next.
        self.last.zero_()
        self.root.copy_(self.next_root)
        self.state.copy_(self.next_state)


class NoiseRing:
    """Gumbel noise of a window of positions: that of position p lies in row p mod ``rows``.

    Args:
        rows: Positions in the window.
        vocab_size: Values of each.
        device: Where they are read.

    Attributes:
        values: float32 ``(rows, vocab_size)``.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self.values = torch.zeros(rows, vocab_size, device=device)
        self._staging = torch.zeros(rows, vocab_size, pin_memory=device.type == "cuda")
        self._seed, self._end = 0, 0

    def start(self, seed: int) -> None:
        """Key the noise of a new text."""
        self._seed, self._end = seed, 0

    def fill(self, first: int, last: int) -> None:
        """Provide the positions ``first`` to ``last``, at most ``rows``; ``first`` never falls within a text.

        What was provided before must have been read: copies do not wait.
        """
        rows = len(self.values)
        for position in range(max(first, self._end), last + 1):
            noise = torch.from_numpy(gumbel_noise(self._seed, position, self.values.shape[1]))
            self._staging[position % rows].copy_(noise)
            self.values[position % rows].copy_(self._staging[position % rows], non_blocking=True)
        self._end = max(self._end, last + 1)
