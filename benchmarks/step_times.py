"""Seconds of decode steps by tree and context length, and of copying what a step must read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from entmtp_env.decoding import Backbone, DraftHeads, HeadsConfig, TreeDecoder
from entmtp_env.decoding.backbone import BackboneConfig
from entmtp_env.decoding.session import Step
from entmtp_env.decoding.staged_graph import StagedGraphDecoder
from entmtp_env.decoding.static_choice import StagedChoice
from entmtp_env.trees import DraftTree

ROUNDS = 5
"""Visits of every tree at every context."""


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Bytes per second, read and written, of the fastest of ten copies of ``size`` bytes."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(10):
        _synchronize(device)
        begin = time.perf_counter()
        target.copy_(source)
        _synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return 2 * source.nbytes / min(seconds)


def step_bytes(backbone: Backbone, heads: DraftHeads | None, context: int) -> int:
    """Bytes that an autoregressive step must read: weights, and keys and values of ``context`` tokens.

    Embeddings are not among them, of which one row is read.

    Args:
        backbone: The base model.
        heads: Heads whose prefix layer reads every token at once, as in captured steps; ``None`` where it
            waits for something to be drafted.
        context: Committed tokens.
    """
    c = backbone.config
    numbers = c.num_layers * _layer_numbers(c, context) + c.hidden_size * (c.vocab_size + 1)
    if heads is not None and heads.prefix is not None:
        numbers += _layer_numbers(heads.config, context) + heads.config.hidden_size
    return numbers * backbone.embedding.element_size()


def _layer_numbers(c: BackboneConfig | HeadsConfig, context: int) -> int:
    """Weights of a decoder layer with two norms, and its keys and values."""
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    weights = 2 * c.hidden_size * (queries + keys) + 3 * c.hidden_size * c.intermediate_size
    return weights + 2 * c.hidden_size + 2 * keys * context


def time_steps(
    decoder: TreeDecoder,
    trees: Sequence[DraftTree],
    contexts: Sequence[int],
    repeats: int,
    advance: Callable[[], None],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Time every tree at every context; they take turns in a fresh random order in every round.

    Args:
        decoder: What decodes.
        trees: K trees.
        contexts: C lengths.
        repeats: Timed steps of a visit; one that is not timed comes before.
        advance: Called after every visit.

    Returns:
        Seconds of whole step, draft and verification ``(rounds * repeats, K, C, 3)``, and of the prefills
        ``(rounds * K, C)``.
    """
    steps = np.zeros((ROUNDS, repeats, len(trees), len(contexts), 3))
    prefill = np.zeros((ROUNDS, len(trees), len(contexts)))
    rng = np.random.default_rng(0)
    for round_ in range(ROUNDS):
        for c in rng.permutation(len(contexts)):
            for k in rng.permutation(len(trees)):
                prefill[round_, k, c] = _start(decoder, contexts[c])
                own = [decoder.step(trees[k]) for _ in range(repeats + 1)][1:]
                steps[round_, :, k, c] = [(s.seconds, s.draft_seconds, s.verify_seconds) for s in own]
                advance()
    return steps.reshape(-1, *steps.shape[2:]), prefill.reshape(-1, len(contexts))


def time_switching(
    decoder: TreeDecoder,
    pair: tuple[DraftTree, DraftTree],
    contexts: Sequence[int],
    repeats: int,
    advance: Callable[[], None],
) -> list[float]:
    """Seconds of two trees that take turns ÷ seconds of the same trees each by itself, by context."""
    seconds = np.zeros((ROUNDS, 3, len(contexts)))
    for own in seconds:
        for c, context in enumerate(contexts):
            for way, schedule in enumerate((pair[:1] * 2, pair[1:] * 2, pair)):
                _start(decoder, context)
                decoder.step(pair[0])
                own[way, c] = np.median(
                    [sum(decoder.step(t).seconds for t in schedule) for _ in range(repeats)]
                )
                advance()
    first, second, turns = np.median(seconds, axis=0)
    return (2 * turns / (first + second)).tolist()


def time_staged(
    decoder: StagedGraphDecoder, contexts: Sequence[int], repeats: int, advance: Callable[[], None]
) -> dict[str, npt.NDArray[np.float64]]:
    """Time steps that draft all depths and verify the largest budget, by who decides.

    Args:
        decoder: What decodes.
        contexts: C lengths.
        repeats: Timed steps of a visit; one that is not timed comes before.
        advance: Called after every visit.

    Returns:
        Seconds ``(rounds * repeats, C)`` by way of deciding: on the host, on the device, and on the device
        with the number of rows known before.
    """
    stages, most = decoder.stages, decoder.rows_for(decoder.max_nodes)
    # The more nodes the cheaper: the largest budget is chosen, whatever the path values.
    prices = np.linspace(1, 0, len(stages.budgets))[:, None].repeat(decoder.capacity + 1, axis=1)
    free = np.zeros((stages.depth, decoder.capacity + 1))
    choice = StagedChoice((0.0,) * stages.depth, prices, free, rate=1.0)

    def on_host() -> Step:
        for _ in range(stages.depth):
            decoder.deepen()
        return decoder.verify_best(decoder.max_nodes)

    ways: dict[str, Callable[[], Step]] = {
        "decided on the host": on_host,
        "decided on the device": lambda: decoder.step_by(choice),
        "in rows known before": lambda: decoder.step_by(choice, rows=most),
    }
    seconds = {way: np.zeros((ROUNDS, repeats, len(contexts))) for way in ways}
    for round_ in range(ROUNDS):
        for c, context in enumerate(contexts):
            for way, step in ways.items():
                _start(decoder, context)
                seconds[way][round_, :, c] = [step().seconds for _ in range(repeats + 1)][1:]
            advance()
    return {way: own.reshape(-1, len(contexts)) for way, own in seconds.items()}


def _start(decoder: TreeDecoder, context: int) -> float:
    vocab_size = decoder.backbone.config.vocab_size
    prompt = np.random.default_rng(context).integers(vocab_size, size=context).tolist()
    return decoder.start(prompt, max_new_tokens=decoder.capacity)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
