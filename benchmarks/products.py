"""The matrix products of an autoregressive step, to be timed alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entmtp_env.decoding import Backbone

KINDS = ("qkv", "out", "gate_up", "down", "lm_head")
"""The products: four in each layer, and the LM head."""


class Product(NamedTuple):
    """One product: the decoder's own map, with its weights as they are laid out."""

    kind: str
    map: Callable[[Tensor], Tensor]
    width: int


def step_products(backbone: Backbone) -> list[Product]:
    """All products of a step, in the order in which a step makes them."""
    c = backbone.config
    found: list[Product] = []
    for layer in backbone._layers:
        # Bound methods of the packed linear maps; of those that add to a residual, the product alone.
        bound: tuple[Any, ...] = (layer.qkv, layer.add_out, layer.gate_up, layer.add_down)
        qkv, out, gate_up, down = (method.__self__.forward for method in bound)
        found += [
            Product("qkv", qkv, c.hidden_size),
            Product("out", out, c.num_heads * c.head_dim),
            Product("gate_up", gate_up, c.hidden_size),
            Product("down", down, c.intermediate_size),
        ]
    return [*found, Product("lm_head", backbone.logits, c.hidden_size)]


@torch.inference_mode()
def time_products(backbone: Backbone) -> npt.NDArray[np.float64]:
    """Seconds of the products of one row, one behind the other, by kind ``(5,)``; the sum is the whole.

    In the order of a step, so that caches hold as little of the weights as there.
    """
    products = step_products(backbone)
    rows = {p.width: torch.randn(1, p.width, device=backbone.device).to(backbone.dtype) for p in products}
    seconds = dict.fromkeys(KINDS, 0.0)
    before = time.perf_counter()
    for product in products:
        product.map(rows[product.width])
        now = time.perf_counter()
        seconds[product.kind] += now - before
        before = now
    return np.array([seconds[kind] for kind in KINDS])
