import pytest
import torch
from torch import nn

from train.weight_average import WeightAverage


def trajectory(steps, seed=0):
    torch.manual_seed(seed)
    return torch.randn(steps + 1, 3, 5)


def follow(decay, weights):
    """A module that takes the weights one after the other, and its average."""
    module = nn.Linear(5, 3, bias=False)
    module.weight.data.copy_(weights[0])
    average = WeightAverage(module, decay)
    for weight in weights[1:]:
        module.weight.data.copy_(weight)
        average.update()
    return module, average


def value(module, average):
    with average.applied():
        return module.weight.detach().clone()


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_the_average_is_the_sum_of_decayed_weights(decay, steps):
    weights = trajectory(steps)
    decays = [1.0, *(min(decay, n / (n + 10)) for n in range(1, steps + 1))]
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for n, weight in enumerate(weights):
        share = 1.0 if n == 0 else 1 - decays[n]
        for later in decays[n + 1 :]:
            share *= later
        expected += share * weight.double()
    torch.testing.assert_close(value(*follow(decay, weights)), expected.float())


def test_after_the_start_it_decays_as_asked():
    weights = trajectory(200)
    weights[100:] = 1.0
    distances = [(value(*follow(0.9, weights[:n])) - 1).norm() for n in (150, 151)]
    assert distances[1] / distances[0] == pytest.approx(0.9, rel=1e-3)


def test_without_decay_it_is_the_weights():
    weights = trajectory(7)
    module, average = follow(0.0, weights)
    assert torch.equal(value(module, average), weights[-1])
    assert torch.equal(module.weight, weights[-1])


def test_the_module_has_its_weights_back_even_after_an_error():
    weights = trajectory(5)
    module, average = follow(0.9, weights)
    before = value(module, average)
    assert not torch.equal(before, weights[-1])

    def fail():
        with average.applied():
            assert torch.equal(module.weight, before)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(module.weight, weights[-1])
    assert torch.equal(value(module, average), before)


def test_a_saved_average_goes_on_the_same(tmp_path):
    weights = trajectory(12)
    _, average = follow(0.9, weights[:6])
    torch.save(average.state_dict(), tmp_path / "state.pt")
    module, restored = follow(0.9, weights[5:6])
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for weight in weights[6:]:
        module.weight.data.copy_(weight)
        restored.update()
    assert torch.equal(value(module, restored), value(*follow(0.9, weights)))


def test_the_average_of_other_weights_is_refused():
    _, average = follow(0.9, trajectory(1))
    with pytest.raises(ValueError, match="zip"):
        average.load_state_dict({"updates": 1, "average": []})
