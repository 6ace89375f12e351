import pytest
import torch
from torch import nn

from entmtp_env.decoding import Backbone, TreeDecoder
from entmtp_env.decoding.half_linear import HalfLinear, can_multiply_half
from entmtp_env.decoding.linear import PackedLinear, inference_linear, pack_for_inference
from entmtp_env.trees import DraftTree
from tests.tiny import EOS, tiny_heads, tiny_model

pytestmark = pytest.mark.skipif(not can_multiply_half(), reason="no products of float16 on this machine")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (16, 24), (64, 24), (65, 24), (2, 3, 24), (600, 24)])
def test_equals_a_product_of_the_rounded_weight(bias, shape):
    torch.manual_seed(0)
    weight, offset, x = torch.randn(40, 24), torch.randn(40) if bias else None, torch.randn(shape)
    linear = HalfLinear(weight, offset)
    residual = torch.randn(*shape[:-1], 40)
    kept = residual.clone()
    exact = x.double() @ weight.half().double().T + (0 if offset is None else offset.double())
    for y, expected in ((linear(x), exact), (linear.add_to(residual, x), residual.double() + exact)):
        assert y.dtype is torch.float32
        torch.testing.assert_close(y.double(), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(residual, kept)


def test_half_weights_on_a_cpu_are_such_maps():
    weight = torch.randn(3, 5)
    assert isinstance(inference_linear(weight.half()), HalfLinear)
    assert isinstance(inference_linear(weight, dtype=torch.float16), HalfLinear)
    assert isinstance(inference_linear(weight), PackedLinear)
    module = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.RMSNorm(8, 1e-5), nn.Linear(8, 3)))
    expected = module(x := torch.randn(5, 4))
    pack_for_inference(module, torch.float16)
    assert isinstance(module[0], HalfLinear)
    assert isinstance(module[1][1], HalfLinear)
    torch.testing.assert_close(module(x), expected, atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("arch", ["hydra-prefix", "medusa"])
def test_texts_are_those_of_the_rounded_weights_in_float32(arch):
    model = tiny_model()
    backbone = Backbone(model, torch.float16)
    assert (backbone.dtype, backbone.weight_dtype) == (torch.float32, torch.float16)
    assert isinstance(backbone._lm_head, HalfLinear)
    decoder = TreeDecoder(backbone, tiny_heads(backbone, arch), capacity=128, eos_token_ids=frozenset({EOS}))
    model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(module.weight.half().float())
    prompt = [3, 1, 4, 1, 5]
    tokens = torch.tensor(prompt)
    logits = backbone.logits(backbone.forward(tokens, backbone.new_cache(8)))
    torch.testing.assert_close(logits, model(tokens[None]).logits[0], atol=1e-5, rtol=1e-5)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)[0, len(prompt) :]
    assert len(expected) > 10
    for tree in (DraftTree.chain(0), DraftTree.chain(3), DraftTree("wide", [(0,), (1,), (0, 0), (1, 0)])):
        decoder.start(prompt, max_new_tokens=40)
        while not decoder.finish_reason:
            decoder.step(tree)
        assert decoder.tokens == expected.tolist()
