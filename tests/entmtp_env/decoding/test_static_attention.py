import pytest
import torch

from entmtp_env.decoding.rotary import RotaryTable
from entmtp_env.decoding.static_attention import StaticAttention
from entmtp_env.trees import DraftTree

HEADS, DIM, CAPACITY = 4, 8, 24


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("length", "bucket"), [(0, 8), (3, 8), (11, 16), (19, 24)])
def test_rows_see_the_committed_ones_and_their_ancestors(kv_heads, length, bucket):
    generator = torch.Generator().manual_seed(length)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    tree = DraftTree("tree", ((0,), (1,), (0, 0), (1, 0)))
    n, depths = len(tree) + 1, torch.from_numpy(tree.depths)
    rotary = RotaryTable(torch.tensor([1.0, 0.3, 0.1, 0.03]), 64, 1.0, torch.float64)
    # Rows behind the committed ones hold what earlier steps left there.
    cache = random(2, kv_heads, CAPACITY, DIM)
    before = cache.clone()
    q, k, v = random(n, HEADS * DIM), random(n, kv_heads * DIM), random(n, kv_heads * DIM)
    attention = StaticAttention(
        rotary,
        torch.tensor([length]),
        depths,
        torch.from_numpy(tree.attends),
        bucket,
        HEADS,
        kv_heads,
        torch.float64,
    )
    out = attention(cache, torch.cat((q, k, v), dim=1).view(n, -1, DIM)).view(n, HEADS, DIM)

    cos, sin = rotary.at(depths + length)
    k, v = (x.view(n, kv_heads, DIM) for x in (k, v))
    k = rotary.rotate(k, cos[:, None], sin[:, None])
    q = rotary.rotate(q.view(n, HEADS, DIM), cos[:, None], sin[:, None])
    for row in range(n):
        seen = [r for r in range(n) if tree.attends[row, r]]
        for head in range(HEADS):
            own = head * kv_heads // HEADS
            keys = torch.cat((before[0, own, :length], k[seen, own]))
            values = torch.cat((before[1, own, :length], v[seen, own]))
            expected = (keys @ q[row, head] / DIM**0.5).softmax(0) @ values
            assert torch.allclose(out[row, head], expected, atol=1e-6)
    written = slice(length, length + n)
    assert torch.equal(cache[1, :, written], v.transpose(0, 1))
    before[:, :, written] = cache[:, :, written]
    assert torch.equal(cache, before)
