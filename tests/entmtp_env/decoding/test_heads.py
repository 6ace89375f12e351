import dataclasses

import pytest
import torch

from entmtp_env.decoding import DraftHeads, HeadsConfig
from entmtp_env.decoding.heads import embedding_scale
from tests.tiny import VOCAB, tiny_backbone, tiny_heads

ARCHS = ("medusa", "hydra", "hydra-prefix")
H, INNER, DEPTH = 32, 48, 4


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("layers", [1, 3])
def test_parameter_count_equals_the_formula(backbone, arch, layers):
    config = HeadsConfig.for_backbone(backbone, arch, draft_vocab_size=5, depth=DEPTH, num_layers=layers)
    heads = DraftHeads(config, torch.arange(5))
    widths = [(d + 1) * H if arch != "medusa" else H for d in range(1, DEPTH + 1)]
    block = H * H + H
    reduced = [2 * (w * H + H) if w != H else block for w in widths]
    expected = sum(reduced) + DEPTH * ((layers - 1) * block + H)
    if arch == "hydra-prefix":
        # 4 query and 2 key-value heads of width 8: Q and output 32 x 32, K and V 16 x 32; three norms.
        expected += 2 * 32 * H + 2 * 16 * H + 3 * INNER * H + 3 * H
    assert sum(parameter.numel() for parameter in heads.parameters()) == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_equal_the_published_formula(backbone, arch):
    heads = tiny_heads(backbone, arch, pack=False)
    for depth in range(1, DEPTH + 1):
        x = torch.randn(3, heads.inputs(depth) * H)
        logits, y = heads.logits(depth, x), x
        for block in heads.mlps[depth - 1]:
            skip = y if y.shape[-1] == H else y @ block.res.weight.T + block.res.bias
            inner = y @ block.linear.weight.T + block.linear.bias
            y = skip + inner * torch.sigmoid(inner)
        y = y / (y.pow(2).mean(-1, keepdim=True) + heads.config.rms_norm_eps).sqrt()
        expected = y * heads.norms[depth - 1].weight @ backbone.lm_head_weight[heads.vocab_ids].T
        assert logits.shape == (3, VOCAB - 4)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_deeper_heads_draft_from_the_first_tokens(backbone):
    whole, deep = tiny_heads(backbone, pack=False), tiny_heads(backbone, deep_vocab=7)
    for depth in range(1, DEPTH + 1):
        x = torch.randn(3, whole.inputs(depth) * H)
        size = VOCAB - 4 if depth == 1 else 7
        assert deep.config.vocab_size(depth) == size
        torch.testing.assert_close(deep.logits(depth, x), whole.logits(depth, x)[:, :size])


@pytest.mark.parametrize("arch", ARCHS)
def test_packing_keeps_the_logits(backbone, arch):
    heads = tiny_heads(backbone, arch, pack=False)
    inputs = [torch.randn(7, heads.inputs(depth) * H) for depth in range(1, DEPTH + 1)]
    before = [heads.logits(depth, x) for depth, x in enumerate(inputs, start=1)]
    heads.pack()
    assert heads.packed
    for depth, x in enumerate(inputs, start=1):
        torch.testing.assert_close(heads.logits(depth, x), before[depth - 1], atol=1e-5, rtol=1e-5)


def test_packed_heads_have_no_gradients(backbone):
    heads = tiny_heads(backbone)
    assert not any(parameter.requires_grad for parameter in heads.parameters())


def test_embeddings_have_the_scale_of_hidden_states(backbone):
    expected = float(backbone.final_norm.weight.pow(2).mean().sqrt())
    everything = torch.arange(len(backbone.embedding))
    assert tiny_heads(backbone).embed(everything).pow(2).mean().sqrt() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(
        tiny_heads(backbone).embed(everything), backbone.embedding * embedding_scale(backbone), rtol=0, atol=0
    )


def test_attach_moves_to_the_dtype_of_the_base():
    backbone = tiny_backbone(dtype=torch.bfloat16)
    heads = tiny_heads(backbone, pack=False)
    assert {parameter.dtype for parameter in heads.parameters()} == {torch.bfloat16}
    assert heads.vocab_ids.dtype is torch.int64
    assert heads.logits(1, torch.zeros(1, 2 * H, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_heads_of_another_width_are_refused(backbone):
    with pytest.raises(ValueError, match=r"for hidden size 32 .* the base model has 64"):
        tiny_heads(backbone).attach(tiny_backbone(hidden_size=64))


def test_heads_of_a_larger_vocabulary_are_refused(backbone):
    heads = tiny_heads(backbone, "medusa", draft_vocab=VOCAB)
    with pytest.raises(ValueError, match="token ids up to 23; the base model has 32 and 20 tokens"):
        heads.attach(tiny_backbone(vocab_size=20))


def test_a_prefix_layer_of_other_head_width_is_refused(backbone):
    with pytest.raises(ValueError, match="attention heads of width 8, the base model 16"):
        tiny_heads(backbone).attach(tiny_backbone(head_dim=16))


@pytest.mark.parametrize("ids", [torch.arange(4), torch.tensor([0, 1, 2, 3, 3]), torch.zeros(5, 1)])
def test_vocab_ids_must_be_distinct_and_as_many(backbone, ids):
    with pytest.raises(ValueError, match="5 distinct ids"):
        DraftHeads(HeadsConfig.for_backbone(backbone, "medusa", 5), ids)


@pytest.mark.parametrize(
    "change",
    [{"arch": "eagle"}, {"depth": 0}, {"num_layers": 0}, {"draft_vocab_size": 0}, {"deep_vocab_size": 6}],
)
def test_bad_configurations_are_refused(backbone, change):
    config = HeadsConfig.for_backbone(backbone, "medusa", 5)
    with pytest.raises(ValueError, match=r"unknown|at least 1|in 0\.\.5"):
        dataclasses.replace(config, **change)
