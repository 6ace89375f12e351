import numpy as np
import torch

from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.decoding.static_buffers import NoiseRing, StaticBuffers
from tests.tiny import VOCAB, tiny_backbone, tiny_heads


def test_the_ring_holds_the_noise_of_a_moving_window():
    ring, rng = NoiseRing(5, 11, torch.device("cpu")), np.random.default_rng(0)
    for seed in (3, 4):
        ring.start(seed)
        first = 7
        while first < 60:
            last = first + int(rng.integers(0, 5))
            ring.fill(first, last)
            for position in range(first, last + 1):
                assert np.array_equal(ring.values[position % 5], gumbel_noise(seed, position, 11))
            first += int(rng.integers(1, 8))


def test_a_loaded_state_advances_by_what_was_accepted():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone)
    buffers = StaticBuffers(backbone, heads, backbone.new_cache(32), heads.prefix.new_cache(32), 7)
    buffers.accepted.fill_(9)  # of a text that was left
    buffers.load(5, VOCAB - 1, torch.full((32,), 2.0))
    assert (int(buffers.length), int(buffers.root), float(buffers.state.sum())) == (5, VOCAB - 1, 64)
    buffers.accepted.fill_(3)
    buffers.next_root.fill_(1)
    buffers.next_state.zero_()
    assert (int(buffers.length), int(buffers.root), float(buffers.state.sum())) == (5, VOCAB - 1, 64)
    for _ in range(2):
        buffers.advance()
        assert (int(buffers.length), int(buffers.root), float(buffers.state.sum())) == (8, 1, 0)
