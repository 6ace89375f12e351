import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from entmtp_env.decoding import Backbone
from entmtp_env.trees import DraftTree, default_bank, published_trees
from tests.tiny import random_tree, tiny_model

SMALL = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS = {
    "llama": lambda: tiny_model(),
    "llama-tied": lambda: tiny_model(tie_word_embeddings=True),
    "llama-multi-head": lambda: tiny_model(num_key_value_heads=4),
    "llama-wide-heads": lambda: tiny_model(head_dim=16),
    "llama-biases": lambda: tiny_model(attention_bias=True, mlp_bias=True),
    "llama-3-rope": lambda: tiny_model(rope_parameters=LLAMA3),
    "llama-linear-rope": lambda: tiny_model(rope_parameters=LINEAR),
    "llama-yarn": lambda: tiny_model(rope_parameters=YARN),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
}
SPLIT = DraftTree("rank-1-expands", ((0,), (1,), (1, 0), (1, 1), (1, 1, 0)))


@pytest.fixture(params=VARIANTS, scope="module")
def model(request):
    torch.manual_seed(1)
    model = VARIANTS[request.param]().eval()
    for name, parameter in model.named_parameters():
        # Transformers starts these at 0 and 1, where a forgotten one would go unseen.
        if name.endswith("bias") or "norm" in name:
            parameter.data.normal_(1.0, 0.3)
    return model


@pytest.fixture(scope="module")
def backbone(model):
    return Backbone(model, torch.float32)


@pytest.fixture(scope="module")
def llama():
    model = tiny_model()
    return model, Backbone(model, torch.float32)


@torch.no_grad()
def reference(model, tokens):
    """Transformers' logits of every position, ``(batch, length, vocab)``."""
    return model(torch.as_tensor(tokens)).logits


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def check_tree(model, backbone, tree, seed):
    """Logits of all nodes in one pass against transformers on each root-to-node path by itself."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(24, (5,), generator=generator).tolist()
    drafted = torch.randint(24, (len(tree) + 1,), generator=generator)
    cache = backbone.new_cache(5 + 64)
    backbone.forward(torch.tensor(prompt), cache)
    cache.keep(list(range(5)))
    positions = 5 + torch.from_numpy(tree.depths)
    logits = backbone.logits(backbone.forward(drafted, cache, positions, torch.from_numpy(tree.attends)))
    for depth in range(tree.depth + 1):
        nodes = [node for node in [(), *tree.nodes] if len(node) == depth]
        rows = [[tree.rows[node[:d]] for d in range(depth + 1)] for node in nodes]
        paths = [prompt + drafted[path].tolist() for path in rows]
        assert_close(logits[[path[-1] for path in rows]], reference(model, paths)[:, -1])
    return positions


def test_prefill_equals_transformers(model, backbone):
    tokens = torch.arange(23).flip(0) % 24
    logits = backbone.logits(backbone.forward(tokens, backbone.new_cache(64)))
    assert_close(logits, reference(model, tokens[None])[0])


def test_continuation_in_chunks_equals_transformers(model, backbone):
    tokens = torch.arange(40) * 7 % 24
    cache, parts = backbone.new_cache(40), []
    for chunk in tokens.split([1, 9, 1, 1, 16, 12]):
        parts.append(backbone.logits(backbone.forward(chunk, cache)))
        cache.keep(list(range(len(chunk))))
    assert_close(torch.cat(parts), reference(model, tokens[None])[0])


def test_batch_with_right_padding_equals_each_sequence_alone(model, backbone):
    lengths = [17, 3, 1, 9]
    tokens = torch.arange(4 * 17).view(4, 17) * 5 % 24
    hidden = backbone.forward_batch(tokens)
    for row, length in enumerate(lengths):
        expected = reference(model, tokens[row : row + 1, :length])[0]
        assert_close(backbone.logits(hidden[row, :length]), expected)


@pytest.mark.parametrize("tree", [SPLIT, published_trees()["hydra-default"]], ids=lambda tree: tree.name)
def test_tree_equals_transformers_path_by_path(model, backbone, tree):
    check_tree(model, backbone, tree, seed=len(tree))


@pytest.mark.parametrize("tree", list(default_bank()), ids=lambda tree: tree.name)
def test_every_default_tree_equals_transformers(llama, tree):
    check_tree(*llama, tree, seed=1)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 40))
def test_random_trees_equal_transformers(llama, random, size):
    check_tree(*llama, random_tree(random, size), seed=size)


def test_siblings_share_a_position(llama):
    positions = check_tree(*llama, SPLIT, seed=0).tolist()
    assert positions[SPLIT.rows[(0,)]] == positions[SPLIT.rows[(1,)]] == 6
    assert positions[SPLIT.rows[(1, 0)]] == positions[SPLIT.rows[(1, 1)]] == 7


def test_a_plain_pass_after_a_tree_pass_equals_a_fresh_one(llama):
    """Trap 7: no mask and no row of the tree outlives its pass."""
    _, backbone = llama
    prompt, after = torch.tensor([3, 1, 4, 1]), torch.tensor([5, 9, 2])
    caches = backbone.new_cache(80), backbone.new_cache(80)
    for cache in caches:
        backbone.forward(prompt, cache)
        cache.keep([0, 1, 2, 3])
    tree = published_trees()["hydra-default"]
    mask = torch.from_numpy(tree.attends)
    backbone.forward(torch.arange(64) % 24, caches[0], 4 + torch.from_numpy(tree.depths), mask)
    tainted, fresh = (backbone.forward(after, cache) for cache in caches)
    assert torch.equal(tainted, fresh)


def test_a_forward_pass_commits_nothing(llama):
    _, backbone = llama
    cache = backbone.new_cache(8)
    first = backbone.forward(torch.tensor([1, 2]), cache)
    assert cache.length == 0
    assert torch.equal(backbone.forward(torch.tensor([1, 2]), cache), first)


def test_weights_are_copies():
    model = tiny_model()
    backbone = Backbone(model, torch.float32)
    tokens = torch.tensor([1, 2, 3])
    before = backbone.logits(backbone.forward(tokens, backbone.new_cache(8)))
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(backbone.logits(backbone.forward(tokens, backbone.new_cache(8))), before)


def test_bfloat16_is_near_float32():
    model = tiny_model()
    tokens = torch.arange(12)
    exact = reference(model, tokens[None])[0]
    backbone = Backbone(model, torch.bfloat16)
    logits = backbone.logits(backbone.forward(tokens, backbone.new_cache(16)))
    assert logits.dtype is torch.bfloat16
    # bfloat16 keeps 8 bits; over two layers the errors add up to a few per cent of the logits' spread.
    assert float((logits.float() - exact).abs().mean() / exact.std()) < 0.05


def test_the_tied_lm_head_shares_the_embedding():
    tied = Backbone(tiny_model(tie_word_embeddings=True), torch.float32)
    untied = Backbone(tiny_model(), torch.float32)
    assert tied.lm_head_weight is tied.embedding
    assert not torch.equal(untied.lm_head_weight, untied.embedding)


def test_grouped_query_heads_size_the_cache(llama):
    """Trap 12: 2 key-value heads, not 4 query heads."""
    _, keys, _ = llama[1].new_cache(8).behind(3)[0]
    assert keys.shape == (2, 3, 8)


def test_another_model_type_is_refused():
    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=8))
    with pytest.raises(ValueError, match=r"'gpt2' is not supported, only llama, mistral, qwen2"):
        Backbone(gpt2, torch.float32)


def test_another_activation_is_refused():
    with pytest.raises(ValueError, match="activation 'gelu'"):
        Backbone(tiny_model(hidden_act="gelu"), torch.float32)


def test_rope_that_depends_on_the_length_is_refused():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(ValueError, match="rope type 'dynamic'"):
        Backbone(tiny_model(rope_parameters=rope), torch.float32)


def test_quantised_weights_are_refused():
    model = tiny_model()
    model.config.quantization_config = {"quant_method": "awq", "bits": 4}
    with pytest.raises(ValueError, match="quantised weights are not supported"):
        Backbone(model, torch.float32)


def test_a_sliding_window_caps_the_positions():
    backbone = Backbone(MistralForCausalLM(MistralConfig(**SMALL, sliding_window=32)), torch.float32)
    assert backbone.new_cache(32).capacity == 32
    with pytest.raises(ValueError, match=r"capacity 33 is outside 1\.\.32"):
        backbone.new_cache(33)


def test_an_unused_sliding_window_does_not():
    config = Qwen2Config(**SMALL, sliding_window=32, use_sliding_window=False)
    assert Backbone(Qwen2ForCausalLM(config), torch.float32).config.max_positions == 128


def test_a_batch_is_refused(llama):
    """Trap 5."""
    with pytest.raises(ValueError, match="batch size 1 only"):
        llama[1].forward(torch.zeros(2, 3, dtype=torch.int64), llama[1].new_cache(8))


def test_a_full_cache_is_refused(llama):
    with pytest.raises(ValueError, match="KV cache full: 0 rows committed, 9 more asked for, capacity 8"):
        llama[1].forward(torch.zeros(9, dtype=torch.int64), llama[1].new_cache(8))


def test_sequences_beyond_the_positions_are_refused(llama):
    with pytest.raises(ValueError, match="513 tokens exceed the 512 positions"):
        llama[1].forward_batch(torch.zeros(1, 513, dtype=torch.int64))
