import numpy as np
import pytest

from benchmarks.generation import TRANSFORMERS, Generation, generate
from entmtp_env.engine import get_engine
from entmtp_env.models import load_pretrained
from entmtp_env.prompts import load_prompts
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank

TREES = (AUTOREGRESSIVE, DraftTree.chain(2), default_bank()[-1])


def test_all_write_the_text_of_transformers_in_float32(tiny_files):
    engine = get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")
    prompts = [engine.encode(prompt) for prompt in load_prompts(tiny_files.prompts)[:3]]
    texts = []
    found = generate(
        engine, load_pretrained(tiny_files.model).model, TREES, prompts, 12, lambda: texts.append(1)
    )
    assert found.names == (TRANSFORMERS, "autoregressive", "chain-2", "hydra-default")
    assert len(texts) == 4 * 3
    assert found.same_texts.tolist() == [3] * 4
    assert (found.tokens == found.tokens[0]).all()
    assert (found.tokens > 0).all()
    assert (found.tokens <= 12).all()
    assert (found.seconds > 0).all()


def test_speed_ups_are_of_all_texts_together():
    found = Generation(
        names=(TRANSFORMERS, "plain", "small", "large"),
        tokens=np.array([[10, 30]] * 4),
        seconds=np.array([[10, 10], [5, 5], [2, 3], [4, 4.0]]),
        same_texts=np.array([2, 2, 1, 0]),
        autoregressive="plain",
    )
    assert found.speed_ups.tolist() == [1, 2, 4, 2.5]
    assert found.best_tree == "small"
    by_name = {own.name: own for own in found.findings()}
    small = by_name["small ÷ transformers (1 of 2 texts the same)"]
    assert (small.value, small.goal) == (4, "≥ 2.7")
    # Per prompt 5 and 10/3.
    assert (small.lower, small.upper) == pytest.approx((10 / 3 + 5 / 12, 5 - 5 / 12))
    assert [own.goal for own in found.findings()] == ["", "≥ 1.8", "≥ 2.7", ""]


def test_the_empty_tree_is_never_the_best(tiny_files):
    found = Generation(
        (TRANSFORMERS, "plain", "small"), np.ones((3, 1)), np.array([[2], [1], [9.0]]), np.ones(3), "plain"
    )
    assert found.best_tree == "small"
