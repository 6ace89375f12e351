import pytest
import torch
from torch import nn

from entmtp_env.decoding.linear import PackedLinear, pack_for_inference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (16, 24), (65, 24), (2, 3, 24), (600, 24), (3, 97, 24)])
def test_equals_a_plain_linear_map(dtype, bias, shape):
    torch.manual_seed(0)
    weight, offset, x = torch.randn(40, 24), torch.randn(40) if bias else None, torch.randn(shape)
    weight, x = weight.to(dtype), x.to(dtype)
    offset = None if offset is None else offset.to(dtype)
    linear = PackedLinear(weight, offset)
    residual = torch.randn(*shape[:-1], 40).to(dtype)
    exact = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    for y, expected in ((linear(x), exact), (linear.add_to(residual, x), residual.double() + exact)):
        assert y.dtype is dtype
        torch.testing.assert_close(y.double(), expected, atol=tolerance * 5, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_lengths_of_prompts_share_few_kernels(dtype):
    linear = PackedLinear(torch.randn(16, 8).to(dtype))
    if not linear.packed:
        pytest.skip(f"no packed products in {dtype} on this machine")
    plain, rows = linear._map, set()
    linear._map = lambda x, *rest: rows.add(len(x)) or plain(x, *rest)
    for count in range(1, 700):
        assert linear(torch.randn(count, 8).to(dtype)).shape == (count, 16)
    assert len(rows - set(range(1, 65))) <= 12


def test_pack_for_inference_replaces_nested_layers_and_keeps_the_function():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.SiLU(), nn.Linear(8, 3, bias=False)))
    x = torch.randn(5, 4)
    expected = module(x)
    pack_for_inference(module)
    assert not any(isinstance(child, nn.Linear) for child in module.modules())
    torch.testing.assert_close(module(x), expected)
