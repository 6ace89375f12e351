"""The forward pass of a small network in plain NumPy: a decision must not wait for a training library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

Activation = Literal["tanh", "relu"]
Floats = npt.NDArray[np.float32]

_FUNCTIONS: dict[str, Callable[[Floats], Floats]] = {
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0),
}


@dataclass(frozen=True, eq=False)
class Network:
    """A multilayer perceptron on normalised observations, float32.

    ``clip((min(x, high) − mean) / scale, ±clip)``, then the layers with the activation between them; the last
    layer is linear. F observed features, K outputs.

    Attributes:
        weights: A matrix ``(inputs, outputs)`` per layer: the transpose of what ``torch.nn.Linear`` has.
        biases: A vector ``(outputs,)`` per layer.
        mean: What is subtracted from each feature, ``(F,)``.
        scale: What each feature is then divided by, positive, ``(F,)``.
        clip: Bound of a normalised feature; may be infinite.
        activation: The function between layers.
        high: Upper bound of the features, or of each, ``()`` or ``(F,)``; by default there is none.
    """

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    mean: Floats
    scale: Floats
    clip: float = 10.0
    activation: Activation = "tanh"
    high: Floats = field(default_factory=lambda: _float32(np.inf))
    _upper: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make the numbers float32, and check that they fit together.

        Raises:
            ValueError: When they do not; the message names what.
        """
        for name in ("weights", "biases"):
            object.__setattr__(self, name, tuple(_float32(array) for array in getattr(self, name)))
        for name in ("mean", "scale", "high"):
            object.__setattr__(self, name, _float32(getattr(self, name)))
        if self.activation not in get_args(Activation):
            raise ValueError(
                f"network: activation {self.activation!r} is none of {', '.join(get_args(Activation))}"
            )
        if not self.clip > 0:
            raise ValueError(f"network: clip must be positive, got {self.clip}")
        if not self.weights or len(self.weights) != len(self.biases):
            raise ValueError(f"network: {len(self.weights)} weights and {len(self.biases)} biases")
        width: tuple[int, ...] = self.mean.shape
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if weight.ndim != 2 or weight.shape[:1] != width or bias.shape != weight.shape[1:]:
                raise ValueError(
                    f"network: layer {layer} has weights {weight.shape} and biases {bias.shape} behind "
                    f"{width} inputs; expected (inputs, outputs) and (outputs,)"
                )
            width = bias.shape
        if self.scale.shape != self.mean.shape or not (self.scale > 0).all():
            raise ValueError("network: scale must have a positive number for each feature")
        if not all(
            np.isfinite(array).all() for array in (*self.weights, *self.biases, self.mean, self.scale)
        ):
            raise ValueError("network: there are numbers that are not finite")
        if self.high.shape not in ((), self.mean.shape) or np.isnan(self.high).any():
            raise ValueError("network: high must be a number, or have one for each feature")
        # Of a normalised feature: one bound in place of two.
        object.__setattr__(self, "_upper", np.minimum((self.high - self.mean) / self.scale, self.clip))

    def __call__(self, observations: npt.NDArray[np.float32]) -> Floats:
        """Outputs ``(..., K)`` for observations ``(..., F)``."""
        values: Floats = np.minimum(
            np.maximum((observations - self.mean) / self.scale, -self.clip), self._upper
        )
        activate = _FUNCTIONS[self.activation]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):  # noqa: B905 - checked once, above
            values = activate(values @ weight + bias)
        outputs: Floats = values @ self.weights[-1] + self.biases[-1]
        return outputs

    def rescaled(self, column: int, factor: float, high: float) -> Network:
        """The same network for a feature in another unit.

        Args:
            column: The feature.
            factor: What its values are to be multiplied by to be in the unit of this network.
            high: Its upper bound in the unit of this network, which greater values are taken for.
        """
        own = np.arange(len(self.mean)) == column
        unit = _float32(np.where(own, factor, 1))
        bounds = _float32(np.where(own, np.minimum(self.high, high), self.high))
        return replace(self, mean=self.mean / unit, scale=self.scale / unit, high=bounds / unit)

    @property
    def shape(self) -> tuple[int, int]:
        """F and K."""
        return len(self.mean), len(self.biases[-1])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Everything as named arrays, for an ``.npz`` file."""
        layers = {
            f"{name}_{layer}": array
            for name, arrays in (("weight", self.weights), ("bias", self.biases))
            for layer, array in enumerate(arrays)
        }
        rest = {"clip": np.array(self.clip), "activation": np.array(self.activation)}
        return {**layers, "mean": self.mean, "scale": self.scale, "high": self.high, **rest}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Network:
        """What `to_arrays` described.

        Raises:
            ValueError: When an array is missing, or they do not fit together.
        """
        layers = range(len({name.partition("_")[2] for name in arrays if "_" in name}))
        try:
            return cls(
                weights=tuple(arrays[f"weight_{layer}"] for layer in layers),
                biases=tuple(arrays[f"bias_{layer}"] for layer in layers),
                mean=arrays["mean"],
                scale=arrays["scale"],
                clip=float(arrays["clip"]),
                activation=arrays["activation"].item(),
                # Files of earlier versions have none.
                high=arrays.get("high", _float32(np.inf)),
            )
        except KeyError as error:
            raise ValueError(f"network: the array {error.args[0]} is missing") from None


def _float32(array: npt.ArrayLike) -> Floats:
    return np.asarray(array, dtype=np.float32)
