"""PyTorch layers to the NumPy network that a policy acts with."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from policies.network import Floats, Network


def to_numpy(modules: Iterable[nn.Module], mean: Floats, scale: Floats, clip: float = 10.0) -> Network:
    """Copy the weights of a multilayer perceptron.

    Args:
        modules: Linear layers with tanh or ReLU modules between them, such as ``nn.Sequential``.
        mean: What was subtracted from each feature before the first layer, ``(F,)``.
        scale: What each feature was then divided by, ``(F,)``.
        clip: Bound of a normalised feature.

    Raises:
        ValueError: When there are other modules, or the sizes do not fit.
    """
    layers, between = [], set()
    for module in modules:
        if isinstance(module, nn.Linear):
            layers.append(module)
        else:
            between.add(type(module))
    if between not in (set(), {nn.Tanh}, {nn.ReLU}):
        names = ", ".join(sorted(kind.__name__ for kind in between))
        raise ValueError(f"expected tanh or ReLU between the layers, got {names}")
    return Network(
        # Copies: the layers may learn on.
        weights=tuple(layer.weight.detach().cpu().numpy().T.copy() for layer in layers),
        biases=tuple(layer.bias.detach().cpu().numpy().copy() for layer in layers),
        mean=mean,
        scale=scale,
        clip=clip,
        activation="relu" if nn.ReLU in between else "tanh",
    )
