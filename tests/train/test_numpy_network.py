import numpy as np
import pytest
import torch
from torch import nn

from train.numpy_network import to_numpy


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_outputs_are_those_of_torch(activation):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 7), activation(), nn.Linear(7, 3))
    mean, scale = torch.randn(6), torch.rand(6) + 0.1
    observations = 3 * torch.randn(20, 6)
    network = to_numpy(layers, mean.numpy(), scale.numpy(), clip=1.5)
    with torch.no_grad():
        expected = layers(((observations - mean) / scale).clamp(-1.5, 1.5))
        # What is learnt later does not come along.
        layers[0].weight.zero_()
        layers[4].bias.zero_()
    np.testing.assert_allclose(network(observations.numpy()), expected, rtol=1e-4, atol=1e-5)


def test_other_layers_are_refused():
    layers = nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="expected tanh or ReLU between the layers, got GELU"):
        to_numpy(layers, np.zeros(2), np.ones(2))
