import dataclasses
from itertools import pairwise

import numpy as np
import pytest

from policies.network import Network


def make_network(activation="tanh", sizes=(5, 4, 3), clip=2.0, seed=0):
    rng = np.random.default_rng(seed)
    pairs = list(pairwise(sizes))
    return Network(
        weights=tuple(rng.normal(size=pair) for pair in pairs),
        biases=tuple(rng.normal(size=n) for _, n in pairs),
        mean=rng.normal(size=sizes[0]),
        scale=rng.uniform(0.1, 2, size=sizes[0]),
        clip=clip,
        activation=activation,
    )


@pytest.mark.parametrize(("activation", "function"), [("tanh", np.tanh), ("relu", lambda x: x * (x > 0))])
@pytest.mark.parametrize("sizes", [(5, 3), (5, 4, 3), (5, 4, 6, 3)])
def test_outputs_are_those_of_the_formula_in_double_precision(activation, function, sizes):
    network = make_network(activation, sizes)
    observations = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32) * 3
    expected = (observations - network.mean.astype(float)) / network.scale
    assert (abs(expected) > 2).any()
    expected = np.clip(expected, -2, 2)
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        expected = np.einsum("ni,io->no", expected if layer == 0 else function(expected), weight) + bias
    outputs = network(observations)
    assert network.shape == (5, 3)
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network(observations[2:3])[0], outputs[2], rtol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_arrays_and_back(activation, tmp_path):
    network = make_network(activation)
    np.savez(tmp_path / "network.npz", **network.to_arrays())
    with np.load(tmp_path / "network.npz", allow_pickle=False) as arrays:
        again = Network.from_arrays(dict(arrays))
    assert (again.activation, again.clip) == (activation, 2.0)
    observations = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    np.testing.assert_array_equal(again(observations), network(observations))


@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_in_another_unit_it_makes_of_a_feature_what_it_made_of_it(factor):
    network = make_network(clip=9.0)
    rows = np.random.default_rng(2).random((40, 5), dtype=np.float32)
    expected = rows.copy()
    expected[:, [1, 3]] = np.minimum(factor * rows[:, [1, 3]], 1)
    assert (factor * rows[:, 1] > 1).any() == (factor > 1)
    rescaled = network.rescaled(1, factor, 1).rescaled(3, factor, 1)
    np.testing.assert_allclose(rescaled(rows), network(expected), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(Network.from_arrays(rescaled.to_arrays())(rows), rescaled(rows))


def test_arrays_of_earlier_versions_have_no_bound():
    arrays = make_network().to_arrays()
    del arrays["high"]
    rows = np.random.default_rng(2).normal(0, 9, (40, 5)).astype(np.float32)
    np.testing.assert_array_equal(Network.from_arrays(arrays)(rows), make_network()(rows))


@pytest.mark.parametrize("name", ["weight_1", "bias_0", "mean", "scale", "clip", "activation"])
def test_a_missing_array_is_named(name):
    arrays = make_network().to_arrays()
    del arrays[name]
    with pytest.raises(ValueError, match=rf"the array {name} is missing"):
        Network.from_arrays(arrays)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, "'gelu' is none of tanh, relu"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"clip": float("nan")}, "clip must be positive"),
        ({"weights": (), "biases": ()}, "0 weights"),
        ({"biases": (np.zeros(4),)}, "2 weights and 1 biases"),
        ({"mean": np.zeros(6)}, r"layer 0 has weights \(5, 4\).*behind \(6,\) inputs"),
        ({"biases": (np.zeros(4), np.zeros(4))}, r"layer 1 has weights \(4, 3\) and biases \(4,\)"),
        ({"scale": np.zeros(5)}, "scale must have a positive number"),
        ({"scale": np.ones(4)}, "scale must have a positive number"),
        ({"mean": np.full(5, np.inf)}, "not finite"),
        ({"high": np.full(5, np.nan)}, "high must be a number"),
        ({"high": np.ones(4)}, "high must be a number"),
    ],
)
def test_each_fault_has_its_message(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_network(), **changes)
