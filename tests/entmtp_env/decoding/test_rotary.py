import math

import torch

from entmtp_env.decoding.rotary import RotaryTable

FREQUENCIES = torch.tensor([1.0, 0.25])


def test_rotation_equals_complex_multiplication():
    """Components i and i + half are real and imaginary part (RoFormer, arXiv 2104.09864, Llama's layout)."""
    table = RotaryTable(FREQUENCIES, 16, 1.0, torch.float32)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 2.0, 0.25]])
    rotated = table.rotate(x, *table.at(torch.tensor([3, 11])))
    for row, position in enumerate((3, 11)):
        for i, frequency in enumerate(FREQUENCIES.tolist()):
            angle = position * frequency
            turned = complex(x[row, i], x[row, i + 2]) * complex(math.cos(angle), math.sin(angle))
            assert abs(complex(rotated[row, i], rotated[row, i + 2]) - turned) < 1e-5


def test_scaling_multiplies_the_result():
    plain, scaled = (RotaryTable(FREQUENCIES, 4, scale, torch.float32) for scale in (1.0, 1.5))
    x, at = torch.ones(1, 4), torch.tensor([2])
    torch.testing.assert_close(scaled.rotate(x, *scaled.at(at)), 1.5 * plain.rotate(x, *plain.at(at)))


def test_angles_do_not_lose_precision_in_bfloat16():
    """Position 1000 is not a bfloat16 number; only the finished table is rounded."""
    cos, _ = RotaryTable(torch.tensor([1.0]), 1002, 1.0, torch.bfloat16).at(torch.tensor([1001]))
    assert abs(float(cos[0, 0]) - math.cos(1001)) < 2**-8


def test_one_table_turns_queries_and_keys_and_leaves_values():
    table = RotaryTable(torch.tensor([1.0, 0.1]), 16, 1.0, torch.float32)
    positions, qkv = torch.tensor([3, 9]), torch.randn(2, 5, 4)
    cos, sin = table.over_qkv(positions, rotated=3, plain=2)
    turned = table.rotate(qkv, cos, sin)
    cos, sin = (x[:, None] for x in table.at(positions))
    assert torch.equal(turned[:, :3], table.rotate(qkv[:, :3], cos, sin))
    assert torch.equal(turned[:, 3:], qkv[:, 3:])
