import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from tests.tiny import tiny_backbone, tiny_heads

H = 32


@pytest.fixture(scope="module")
def prefix():
    return tiny_heads(tiny_backbone(), pack=False).prefix.requires_grad_(False)


def test_whole_sequences_equal_a_llama_layer(prefix):
    config = LlamaConfig(
        hidden_size=H, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6
    )
    config._attn_implementation = "sdpa"
    layer = LlamaDecoderLayer(config, 0).eval()
    q, k, v = prefix.qkv.weight.split(prefix.widths)
    gate, up = prefix.gate_up.weight.chunk(2)
    layer.load_state_dict(
        {
            "self_attn.q_proj.weight": q,
            "self_attn.k_proj.weight": k,
            "self_attn.v_proj.weight": v,
            "self_attn.o_proj.weight": prefix.out.weight,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": prefix.down.weight,
            "input_layernorm.weight": prefix.input_norm.weight,
            "post_attention_layernorm.weight": prefix.post_norm.weight,
        }
    )
    hidden = torch.randn(2, 11, H)
    positions = LlamaRotaryEmbedding(config)(hidden, torch.arange(11)[None])
    with torch.no_grad():
        expected = layer(hidden, position_embeddings=positions)
    torch.testing.assert_close(prefix(hidden), prefix.final_norm(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunks", [[12], [1] * 12, [5, 1, 4, 2]])
def test_chunks_with_a_cache_equal_the_whole_sequence(prefix, chunks):
    hidden = torch.randn(1, 12, H)
    cache = prefix.new_cache(12)
    parts = [prefix(chunk, cache) for chunk in hidden.split(chunks, dim=1)]
    assert cache.length == 12
    torch.testing.assert_close(torch.cat(parts, dim=1), prefix(hidden), atol=1e-5, rtol=1e-4)


def test_it_is_causal(prefix):
    hidden = torch.randn(1, 8, H)
    changed = hidden.clone()
    changed[:, 5:] += 1
    before, after = prefix(hidden)[0], prefix(changed)[0]
    torch.testing.assert_close(after[:5], before[:5])
    assert not torch.allclose(after[5:], before[5:])


def test_a_full_cache_is_refused(prefix):
    cache = prefix.new_cache(4)
    prefix(torch.randn(1, 3, H), cache)
    with pytest.raises(ValueError, match="3 rows committed, 2 more asked for, capacity 4"):
        prefix(torch.randn(1, 2, H), cache)
