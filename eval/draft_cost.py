"""What drafting costs on this machine, as a share of an autoregressive step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from entmtp_env.decoding.decoder import TreeDecoder
from entmtp_env.engine import Engine
from entmtp_env.progress import progress_bar
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, published_trees

COMMIT_ROWS = (1, 3)
"""Rows that the prefix layer is timed with: of an autoregressive step, and of a typical tree step."""
_WARM_UP = 5


@dataclass(frozen=True)
class DraftCost:
    """Median seconds, all measured in turn within one run.

    Attributes:
        step: An autoregressive step by the tree decoder.
        prefix: The prefix layer over ``COMMIT_ROWS`` committed rows; 0 without one.
        depths: Drafting each depth of Hydra's 63-node tree: what the tree down to it takes more than the tree
            down to the depth before.
        tree: Drafting that tree.
        share: Prefix layer over 3 rows and the tree, over ``step``.
        share_of_depths: Each of ``depths`` over ``step``.
    """

    step: float
    prefix: list[float]
    depths: list[float]
    tree: float
    share: float
    share_of_depths: list[float]


@torch.inference_mode()
def draft_cost(engine: Engine, prompt: Sequence[int], steps: int) -> DraftCost:
    """Time autoregressive steps, and between them the pieces of drafting.

    Args:
        engine: What to time; its lock is held.
        prompt: Token ids of the text to continue.
        steps: Timed rounds, after a few for warming up.

    Raises:
        ValueError: When prompt and steps do not fit into the model.
    """
    heads, device = engine.heads, engine.backbone.device
    rounds = _WARM_UP + steps
    whole = published_trees()["hydra-default"]
    trees = [
        DraftTree(f"depth-{depth}", tuple(node for node in whole.nodes if len(node) <= depth))
        for depth in range(1, min(whole.depth, heads.config.depth) + 1)
    ]
    capacity = len(prompt) + rounds + 1 + len(whole)
    decoder = TreeDecoder(engine.backbone, heads, capacity=capacity)
    prefix_cache = None if heads.prefix is None else heads.prefix.new_cache(capacity)
    rows = torch.randn(1, max(COMMIT_ROWS), heads.config.hidden_size).to(device, engine.backbone.dtype)

    def commit(count: int) -> None:
        if heads.prefix is not None and prefix_cache is not None:
            prefix_cache.length = decoder.length
            heads.prefix(rows[:, :count], prefix_cache)

    def timed(work: Callable[..., object], argument: object) -> float:
        _synchronise(device)
        begin = time.perf_counter()
        work(argument)
        _synchronise(device)
        return time.perf_counter() - begin

    seconds = []
    with engine.lock, progress_bar() as bar:
        task = bar.add_task(f"timing {heads.config.arch} heads", total=rounds)
        decoder.start(prompt, max_new_tokens=rounds + 1)
        for _ in range(rounds):
            # The prefix layer has its own line, so it has read all before something is drafted.
            _ = decoder.state
            seconds.append(
                [
                    *(timed(commit, count) for count in COMMIT_ROWS),
                    *(timed(decoder.probe, tree) for tree in trees),
                    timed(decoder.step, AUTOREGRESSIVE),
                ]
            )
            bar.advance(task)
    medians = np.median(seconds[_WARM_UP:], axis=0)
    prefix, drafts, step = medians[: len(COMMIT_ROWS)], medians[len(COMMIT_ROWS) : -1], float(medians[-1])
    if heads.prefix is None:
        prefix = np.zeros(len(COMMIT_ROWS))
    depths = np.diff(drafts, prepend=0.0)
    return DraftCost(
        step=step,
        prefix=prefix.tolist(),
        depths=depths.tolist(),
        tree=float(drafts[-1]),
        share=float((prefix[-1] + drafts[-1]) / step),
        share_of_depths=(depths / step).tolist(),
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
