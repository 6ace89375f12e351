import pytest
import torch

from benchmarks.products import KINDS, step_products, time_products
from entmtp_env.decoding import Backbone
from tests.tiny import tiny_model

# A head width of its own, so that no two widths are alike but those that must be.
SHAPES = {"head_dim": 12, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("tied", [False, True])
def test_they_are_all_linear_maps_of_the_model_in_its_order(tied):
    model = tiny_model(**SHAPES, tie_word_embeddings=tied)
    expected = []
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        expected += [[a.q_proj, a.k_proj, a.v_proj], [a.o_proj], [m.gate_proj, m.up_proj], [m.down_proj]]
    expected.append([model.lm_head])
    found = step_products(Backbone(model, torch.float32))
    assert [product.kind for product in found] == [*KINDS[:4] * 2, "lm_head"]
    for product, maps in zip(found, expected, strict=True):
        x = torch.randn(3, product.width)
        torch.testing.assert_close(product.map(x), torch.cat([linear(x) for linear in maps], dim=-1))


def test_each_kind_has_its_time(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr("benchmarks.products.time.perf_counter", lambda: next(times))
    # A second each: two layers of four products, and the LM head.
    assert time_products(Backbone(tiny_model(), torch.float32)).tolist() == [2, 2, 2, 2, 1]
