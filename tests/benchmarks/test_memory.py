import pytest
from safetensors.torch import load_file

from benchmarks.memory import Memory, measure_memory, weight_bytes
from entmtp_env.decoding.half_linear import can_multiply_half
from entmtp_env.engine import get_engine
from entmtp_env.models import load_pretrained


def test_weights_are_those_of_the_files(tiny_files):
    engine = get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")
    weights, copies = weight_bytes(engine)
    base = sum(p.nbytes for p in load_pretrained(tiny_files.model).model.parameters())
    saved = load_file(tiny_files.heads).values()
    heads = sum(4 * t.numel() for t in saved if t.is_floating_point())
    assert weights == base + heads
    # The LM head's rows of the draft vocabulary, and the LM head where it is packed beside the plain one.
    config = engine.backbone.config
    packed = engine.backbone._lm_head.packed * config.vocab_size
    assert copies == 4 * config.hidden_size * (engine.heads.config.draft_vocab_size + packed)


@pytest.mark.skipif(not can_multiply_half(), reason="no products of float16 on this machine")
def test_weights_of_products_take_two_bytes_in_float16(tiny_files):
    halves, wholes = (
        weight_bytes(get_engine(tiny_files.model, tiny_files.heads, dtype, "cpu"))
        for dtype in ("float16", "float32")
    )
    model = load_pretrained(tiny_files.model).model
    products = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name)
    heads = sum(t.numel() for name, t in load_file(tiny_files.heads).items() if t.ndim == 2)
    lm_head = model.lm_head.weight.numel()
    # The LM head stays beside its product, in float32.
    assert halves[0] == wholes[0] - 2 * (products - lm_head + heads)
    assert halves[1] < wholes[1]


def test_what_is_beyond_weights_and_kv_is_named():
    found = Memory(200, 1000, 100, 300, 9000, 1700, 1500, 1540).findings(50)
    megabytes = {own.name: own.value * 1e6 for own in found}
    assert megabytes["peak of decoding − weights − KV"] == pytest.approx(400)
    assert megabytes["growth over 50 steps"] == pytest.approx(40)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="at least 10 steps, got 9"):
        measure_memory(9)
