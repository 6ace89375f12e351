import math

import pytest
import torch

from entmtp_env.decoding.certainty import certainty, certainty_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [0.0, 90.0])
def test_the_definitions(dtype, shift):
    logits = (4 * torch.randn(3, 2, 50) + shift).to(dtype)
    p = torch.softmax(logits.double(), -1)
    top, entropy = certainty(logits)
    torch.testing.assert_close(top.double(), p.amax(-1), atol=0, rtol=1e-5)
    torch.testing.assert_close(
        entropy.double(), torch.special.entr(p).sum(-1) / math.log(50), atol=1e-6, rtol=1e-5
    )
    one = certainty_of(logits[1, 0])
    assert one == pytest.approx((float(top[1, 0]), float(entropy[1, 0])), rel=1e-5, abs=1e-6)


def test_one_token_and_equal_tokens():
    assert [float(x) for x in certainty(torch.tensor([3.0]))] == [1, 0]
    assert certainty_of(torch.tensor([3.0])) == (1, 0)
    top, entropy = certainty(torch.zeros(8))
    assert (float(top), float(entropy)) == (pytest.approx(1 / 8), pytest.approx(1))
