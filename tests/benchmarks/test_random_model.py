import pytest
import torch

from benchmarks.random_model import random_backbone, random_heads
from entmtp_env.decoding import TreeDecoder
from entmtp_env.trees import default_bank

CPU = torch.device("cpu")


def test_weights_are_laid_out_and_no_two_rows_are_alike():
    backbone = random_backbone("tiny", torch.float32, CPU)
    assert backbone.embedding.is_contiguous()
    assert backbone.embedding.shape == (64, 32)
    for weight in (backbone.embedding, backbone.lm_head_weight):
        assert len(weight.unique(dim=0)) == len(weight)
    assert not torch.equal(backbone.embedding, backbone.lm_head_weight)
    assert 0.01 < float(backbone.embedding.std()) < 0.03


@pytest.mark.parametrize("arch", ["medusa", "hydra", "hydra-prefix"])
def test_it_decodes(arch):
    backbone = random_backbone("tiny", torch.float32, CPU)
    decoder = TreeDecoder(backbone, random_heads(backbone, arch), capacity=128)
    decoder.start([1, 2, 3], max_new_tokens=12)
    for tree in default_bank():
        if not decoder.finish_reason:
            decoder.step(tree)
    assert torch.isfinite(decoder.root_logits).all()
    assert len(decoder.tokens) >= 10
