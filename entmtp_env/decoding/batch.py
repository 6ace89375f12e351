"""Batched autoregressive generation: many texts at once, for training text and recordings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from entmtp_env.decoding.acceptance import AcceptanceRule, GreedyRule
from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.teacher_forcing import like_lengths
from entmtp_env.model_errors import named_shortage

_ROWS_PER_PREFILL = 4096
# Attention is paid up to the longest text of a group.
_ATTENTION_GROUP = 16


@dataclass(frozen=True)
class Request:
    """A text to write.

    Attributes:
        prompt: Token ids.
        rule: How tokens are chosen; an instance of its own for every request. Under ``greedy`` and
            ``sample`` the text is the one that the tree decoder writes.
        seed: Key of the rule's randomness.
    """

    prompt: Sequence[int]
    rule: AcceptanceRule = field(default_factory=GreedyRule)
    seed: int = 0


@dataclass
class _Running:
    index: int
    request: Request
    reply: list[int] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    ended: bool = False


def generate_batch(
    backbone: Backbone,
    requests: Iterable[Request],
    *,
    max_new_tokens: int,
    eos_token_ids: frozenset[int] = frozenset(),
    slots: int = 64,
    hidden: MutableMapping[int, Tensor] | None = None,
) -> Iterator[tuple[int, list[int]]]:
    """Write texts token by token, a text in each slot; a finished one makes room for the next.

    Args:
        backbone: The base model.
        requests: What to write.
        max_new_tokens: Token cap of a reply.
        eos_token_ids: Tokens that end a text.
        slots: Texts written at a time.
        hidden: When given, the base's hidden states of each finished text, prompt and reply,
            ``(tokens, hidden_size)``, are put here by the number of its request.

    Yields:
        Number of the request and the reply's token ids, in the order in which they finish. A reply ends with
        EOS where the model stopped by itself.

    Raises:
        ValueError: When a prompt is empty or leaves no room for a token.
        FloatingPointError: When logits are not finite; the message names the request.
        MemoryError: When the device has too little memory for so many texts of such a length.
    """
    # Prompts of like length are prefilled together, so that little is padding.
    queue = sorted(enumerate(requests), key=lambda item: len(item[1].prompt), reverse=True)
    longest = max((len(request.prompt) for _, request in queue), default=0)
    capacity = min(longest + max_new_tokens, backbone.config.max_positions)
    for index, request in queue:
        if not 0 < len(request.prompt) < capacity:
            raise ValueError(
                f"request {index}: a prompt of {len(request.prompt)} tokens, expected 1 to {capacity - 1}; "
                "shorten it or leave it out"
            )
    slots = min(slots, len(queue))
    gigabytes = math.prod(_cache_shape(backbone, slots, capacity)) * backbone.dtype.itemsize / 1e9
    with named_shortage(
        f"writing {slots} texts of up to {capacity} tokens at a time ({gigabytes:.3g} GB of keys and values)",
        "lower slots or max_new_tokens, or choose another device",
    ):
        batch = _Batch(backbone, slots, capacity)
        yield from _write(batch, queue, max_new_tokens, eos_token_ids, hidden)


def _write(
    batch: _Batch,
    queue: list[tuple[int, Request]],
    max_new_tokens: int,
    eos_token_ids: frozenset[int],
    hidden: MutableMapping[int, Tensor] | None,
) -> Iterator[tuple[int, list[int]]]:
    running: list[_Running] = []
    while queue or running:
        free = batch.slots - len(running)
        # Prefilling several at a time wastes less than one by one, and idle slots cost next to nothing.
        if queue and (8 * free >= batch.slots or not running):
            first = len(running)
            for index, request in queue[:free]:
                request.rule.start(request.seed)
                running.append(_Running(index, request))
            del queue[:free]
            states = batch.prefill([text.request.prompt for text in running[first:]])
        else:
            first = 0
            states = list(batch.step([text.reply[-1] for text in running])[:, None])
        with torch.inference_mode():
            logits = batch.backbone.logits(torch.stack([own[-1] for own in states]))
        _check_finite(running[first:], logits)
        chosen = _choose(running[first:], logits)
        for text, own, token in zip(running[first:], states, chosen, strict=True):
            if hidden is not None:
                text.states.append(own)
            if not text.ended:
                text.reply.append(token)
        # From the last to the first, so that a text moved into a gap has been looked at.
        for slot in reversed(range(first, len(running))):
            text = running[slot]
            seen, text.ended = text.ended, _has_ended(text, batch.capacity, max_new_tokens, eos_token_ids)
            # The states of a text's last token are those of one step more.
            if text.ended and (seen or hidden is None):
                if hidden is not None:
                    hidden[text.index] = torch.cat(text.states)
                batch.remove(slot)
                running[slot] = running[-1]
                running.pop()
                yield text.index, text.reply


def _has_ended(text: _Running, capacity: int, max_new_tokens: int, eos_token_ids: frozenset[int]) -> bool:
    full = len(text.request.prompt) + len(text.reply) >= capacity
    return text.reply[-1] in eos_token_ids or len(text.reply) >= max_new_tokens or full


def _check_finite(texts: Sequence[_Running], logits: Tensor) -> None:
    finite = logits.amax(-1).isfinite()
    if not finite.all():
        text = texts[int(finite.int().argmin())]
        raise FloatingPointError(
            f"request {text.index}: the base model's logits behind {len(text.reply)} tokens of the reply are "
            f"NaN or infinite; its weights are damaged, or {logits.dtype} is too narrow for them: try float32"
        )


def _choose(texts: Sequence[_Running], logits: Tensor) -> list[int]:
    tokens = GreedyRule().choose(logits, []).tolist()
    for row, text in enumerate(texts):
        if not isinstance(text.request.rule, GreedyRule):
            position = len(text.request.prompt) + len(text.reply)
            tokens[row] = int(text.request.rule.choose(logits[row : row + 1], [position]))
    return tokens


def _cache_shape(backbone: Backbone, slots: int, capacity: int) -> tuple[int, ...]:
    """Of the keys and values of a batch: (layers, 2, slots, kv_heads, capacity, head_dim)."""
    c = backbone.config
    return c.num_layers, 2, slots, c.num_kv_heads, capacity, c.head_dim


class _Batch:
    """Texts side by side in slots 0, 1, ... without gaps, each with its own length."""

    def __init__(self, backbone: Backbone, slots: int, capacity: int) -> None:
        self.backbone, self.slots, self.capacity = backbone, slots, capacity
        shape = _cache_shape(backbone, slots, capacity)
        self._data = torch.zeros(shape, dtype=backbone.dtype, device=backbone.device)
        self._lengths: list[int] = []

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """Add texts behind the last slot; hidden states of each, ``(tokens, hidden_size)``."""
        first, lengths = len(self._lengths), [len(prompt) for prompt in prompts]
        self._lengths += lengths
        hidden: dict[int, Tensor] = {}
        for group in like_lengths(lengths, _ROWS_PER_PREFILL):
            states = self._prefill([prompts[i] for i in group], [first + i for i in group])
            hidden |= {i: own[: lengths[i]].clone() for i, own in zip(group, states, strict=True)}
        return [hidden[i] for i in range(len(prompts))]

    def _prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> Tensor:
        tokens = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
        width, rows = tokens.shape[1], torch.tensor(slots, device=self.backbone.device)

        # Rows of padding are written too; lengths hide them, and later tokens replace them.
        def keep(layer: int, keys: Tensor, values: Tensor) -> None:
            self._data[layer, 0, rows, :, :width] = keys
            self._data[layer, 1, rows, :, :width] = values

        return self.backbone.forward_batch(tokens.to(self.backbone.device), keep)

    @torch.inference_mode()
    def step(self, tokens: Sequence[int]) -> Tensor:
        """One token more for every text; its hidden states, ``(texts, hidden_size)``."""
        b, c, count = self.backbone, self.backbone.config, len(tokens)
        lengths = torch.tensor(self._lengths, device=b.device)
        rows = torch.arange(count, device=b.device)
        cos, sin = b.rotary.over_qkv(lengths, c.num_heads + c.num_kv_heads, c.num_kv_heads)
        groups = [
            self._attention_mask(lengths, slice(start, start + _ATTENTION_GROUP))
            for start in range(0, count, _ATTENTION_GROUP)
        ]
        group, counts = c.num_heads // c.num_kv_heads, [c.num_heads, c.num_kv_heads, c.num_kv_heads]

        def attend(layer: int, qkv: Tensor) -> Tensor:
            keys, values = self._data[layer, :, :count]
            q, k, v = b.rotary.rotate(qkv, cos, sin).split(counts, dim=1)
            keys[rows, :, lengths], values[rows, :, lengths] = k, v
            # Query heads of a group share their keys, so they are laid out as further rows of one head.
            q = q.reshape(count, c.num_kv_heads, group, c.head_dim)
            out = [
                F.scaled_dot_product_attention(q[own], keys[own, :, :end], values[own, :, :end], mask)
                for own, end, mask in groups
            ]
            return torch.cat(out).reshape(count, -1)

        hidden = b.run(b.embedding[torch.tensor(tokens, device=b.device)], attend)
        self._lengths = [length + 1 for length in self._lengths]
        return hidden

    def _attention_mask(self, lengths: Tensor, own: slice) -> tuple[slice, int, Tensor]:
        """Some slots, the rows that the longest of them needs, and their mask."""
        end = max(self._lengths[own]) + 1
        too_late = torch.arange(end, device=lengths.device) > lengths[own, None]
        mask = torch.zeros(too_late.shape, dtype=self.backbone.dtype, device=lengths.device)
        return own, end, mask.masked_fill_(too_late, float("-inf"))[:, None, None]

    def remove(self, slot: int) -> None:
        """Forget a text; the last one takes its place."""
        last = len(self._lengths) - 1
        if slot != last:
            length = self._lengths[last]
            self._data[:, :, slot, :, :length] = self._data[:, :, last, :, :length]
            self._lengths[slot] = self._lengths[last]
        self._lengths.pop()
