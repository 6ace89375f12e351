import pytest
import torch

from entmtp_env.decoding.rms_norm import InferenceRMSNorm

WIDTH = 24


@pytest.mark.parametrize("rows", [1, 7, 64, 65])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_the_closed_form(rows, dtype, tolerance):
    x, weight = (100 * torch.randn(rows, WIDTH)).to(dtype), torch.randn(WIDTH).to(dtype)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    norm = InferenceRMSNorm(weight, 1e-5)
    torch.testing.assert_close(norm(x).double(), exact, rtol=2 * tolerance, atol=tolerance)


def test_epsilon_counts_where_rows_are_small():
    x = torch.full((1, WIDTH), 1e-3, dtype=torch.bfloat16)
    norm = InferenceRMSNorm(torch.ones(WIDTH, dtype=torch.bfloat16), 1.0)
    torch.testing.assert_close(norm(x), x, rtol=2**-7, atol=0)


def test_leading_axes_stay():
    x = torch.randn(2, 3, WIDTH).bfloat16()
    norm = InferenceRMSNorm(torch.ones(WIDTH).bfloat16(), 1e-6)
    assert torch.equal(norm(x)[1], norm(x[1]))
