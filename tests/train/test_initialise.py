import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from entmtp_env.decoding import Backbone, save_heads
from tests.tiny import VOCAB, tiny_heads, tiny_model
from train.initialise import initialise

TOKENS = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def backbone(model):
    with torch.no_grad():
        model.model.norm.weight.mul_(torch.linspace(0.5, 2, 32))
    return Backbone(model, torch.float32)


def test_by_default_only_the_norms_are_set(model, backbone):
    heads, untouched = (tiny_heads(backbone, pack=False) for _ in range(2))
    assert initialise(heads, backbone, model) is None
    norms = [*heads.norms, heads.prefix.final_norm]
    assert all(torch.equal(norm.weight, model.model.norm.weight) for norm in norms)
    before = untouched.state_dict()
    changed = {name for name, weight in heads.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {"prefix.final_norm.weight", *(f"norms.{d}.weight" for d in range(4))}


@pytest.mark.parametrize("arch", ["medusa", "hydra", "hydra-prefix"])
@torch.no_grad()
def test_another_draft_vocabulary_keeps_the_logits_of_shared_tokens(model, backbone, tmp_path, arch):
    path = tmp_path / "heads.safetensors"
    earlier = tiny_heads(backbone, arch, draft_vocab=12, pack=False)
    save_heads(earlier, path, torch.float32, {"seed": 7})
    heads = tiny_heads(backbone, arch, draft_vocab=18, seed=1, pack=False)
    vocab = heads.vocab_ids.clone()
    assert initialise(heads, backbone, model, path) == {"seed": 7}
    assert torch.equal(heads.vocab_ids, vocab)
    shared = [
        (earlier.vocab_ids.tolist().index(i), j)
        for j, i in enumerate(vocab.tolist())
        if i in earlier.vocab_ids
    ]
    assert 5 < len(shared) < 12
    theirs, ours = map(list, zip(*shared, strict=True))
    for depth in (1, 2, 3, 4):
        inputs = torch.randn(5, heads.inputs(depth) * 32)
        expected = earlier.logits(depth, inputs)[:, theirs]
        torch.testing.assert_close(heads.logits(depth, inputs)[:, ours], expected)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@torch.no_grad()
def test_the_prefix_layer_starts_as_the_last_layer_of_the_base(model, kind):
    if kind == "qwen2":
        torch.manual_seed(3)
        settings = {**model.config.to_dict(), "model_type": "qwen2", "initializer_range": 0.3}
        model = Qwen2ForCausalLM(Qwen2Config(**settings)).eval()
        for layer in model.model.layers:
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                projection.bias.zero_()
    backbone = Backbone(model, torch.float32)
    heads = tiny_heads(backbone, pack=False)
    initialise(heads, backbone, model, prefix_from_base=True)
    hidden = torch.randn(2, 9, 32)
    positions = torch.arange(9)[None]
    layer = model.model.layers[-1]
    rotary = model.model.rotary_emb(hidden, positions)
    causal = torch.full((9, 9), float("-inf")).triu(1)[None, None]
    output = layer(hidden, attention_mask=causal, position_ids=positions, position_embeddings=rotary)
    expected = model.model.norm(output)
    torch.testing.assert_close(heads.prefix(hidden), expected, rtol=1e-4, atol=1e-4)


def test_another_architecture_is_refused(model, backbone, tmp_path):
    path = tmp_path / "heads.safetensors"
    save_heads(tiny_heads(backbone, "hydra", 3, pack=False), path)
    for arch, depth, message in (
        ("hydra", 4, "has depth 3, not 4: start from"),
        ("medusa", 3, "has arch hydra, not medusa: start from"),
        ("medusa", 4, "has arch hydra, not medusa; depth 3, not 4: start from"),
    ):
        with pytest.raises(ValueError, match=message):
            initialise(tiny_heads(backbone, arch, depth, pack=False), backbone, model, path)


def test_heads_of_another_base_are_refused_even_if_all_shapes_agree(model, backbone, tmp_path):
    other = Backbone(tiny_model(num_attention_heads=2, num_key_value_heads=1, head_dim=16), torch.float32)
    path = tmp_path / "heads.safetensors"
    save_heads(tiny_heads(other, pack=False), path)
    heads = tiny_heads(backbone, pack=False)
    with pytest.raises(ValueError, match="num_heads 2, not 4; num_kv_heads 1, not 2; head_dim 16, not 8"):
        initialise(heads, backbone, model, path)


def test_missing_heads_are_named(model, backbone, tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        initialise(tiny_heads(backbone, pack=False), backbone, model, tmp_path / "absent.safetensors")
