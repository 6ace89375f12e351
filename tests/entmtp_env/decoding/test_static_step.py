import pytest
import torch

from entmtp_env.decoding import GreedyRule, TreeDecoder
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_step import StaticStep
from entmtp_env.trees import published_trees
from tests.tiny import tiny_backbone, tiny_heads

TREE = published_trees()["hydra-default"]


@pytest.mark.parametrize("arch", ["medusa", "hydra", "hydra-prefix"])
@torch.inference_mode()
def test_pieces_are_those_of_the_decoder_and_may_run_twice(arch):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch)
    eager, own = (TreeDecoder(backbone, heads, capacity=96) for _ in range(2))
    for decoder in (eager, own):
        decoder.start([1, 3, 5])
    buffers = StaticBuffers(backbone, heads, own._cache, own._prefix_cache, 63)
    buffers.load(own.length, own.root, own.state)
    step = StaticStep(backbone, heads, buffers, TREE)

    draft = eager.draft(TREE)
    tokens, hidden, logits = eager.verify(draft)
    verdict = GreedyRule().judge(TREE, tokens, logits, eager.length)
    eager.commit(verdict, tokens, hidden, logits)
    for _ in range(2):
        step.draft()
        step.verify(80)
    assert torch.equal(buffers.tokens, tokens)
    assert torch.allclose(buffers.hidden, hidden, atol=1e-5)
    assert torch.allclose(buffers.logits, logits, atol=1e-4)
    confidence, entropy = draft.chain()
    assert torch.allclose(buffers.signals, torch.tensor([confidence, entropy]), atol=1e-5)
    for _ in range(2):
        step.verify(80)
        step.accept(GreedyRule())
        step.commit(80)
    buffers.advance()
    count = len(verdict.rows)
    assert buffers.result[:2].tolist() == [count, verdict.first_draft_right]
    assert buffers.result[2:][:count].tolist() == tokens[verdict.rows].tolist()
    assert buffers.result[2 + 5 :][:count].tolist() == verdict.next_tokens
    assert (int(buffers.length), int(buffers.root)) == (eager.length, eager.root)
    assert torch.allclose(buffers.state, eager.state, atol=1e-5)
    rows = eager._cache._data[:, :, :, : eager.length]
    assert torch.allclose(buffers.kv[:, :, :, : eager.length], rows, atol=1e-5)
