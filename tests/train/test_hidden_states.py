import numpy as np
import pytest
import torch

import train.hidden_states
from tests.tiny import VOCAB, tiny_backbone
from train.hidden_states import hidden_states
from train.texts import Text

LENGTHS = (5, 40, 2, 17, 40, 9)


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def texts():
    rng = np.random.default_rng(0)
    return [Text((1,), tuple(rng.integers(0, VOCAB, n - 1).tolist())) for n in LENGTHS]


@pytest.fixture(autouse=True)
def several_passes(monkeypatch):
    monkeypatch.setattr(train.hidden_states, "_TOKENS_PER_PASS", 48)


@pytest.fixture
def computed(backbone, monkeypatch):
    """Sizes of the base model's passes."""
    passes, forward = [], backbone.forward_batch

    def counted(tokens):
        passes.append(tuple(tokens.shape))
        return forward(tokens)

    monkeypatch.setattr(backbone, "forward_batch", counted)
    return passes


def test_each_text_has_its_own_states(backbone, texts, tmp_path, computed):
    states = hidden_states(backbone, "model", texts, tmp_path)
    for index, text in enumerate(texts):
        alone = backbone.forward(torch.tensor(text.tokens), backbone.new_cache(64))
        torch.testing.assert_close(states[index], alone.bfloat16(), rtol=0.01, atol=0.01)
    assert len(computed) > 2
    assert max(rows * length for rows, length in computed) <= 48


def test_what_is_on_disk_is_not_computed_again(backbone, texts, tmp_path, computed):
    first = hidden_states(backbone, "model", texts, tmp_path)
    computed.clear()
    again = hidden_states(backbone, "model", texts, tmp_path)
    assert not computed
    assert all(torch.equal(first[i], again[i]) for i in range(len(texts)))


@pytest.mark.parametrize("other", ["model", "texts"])
def test_another_model_or_other_texts_are_computed(backbone, texts, tmp_path, computed, other):
    hidden_states(backbone, "model", texts, tmp_path)
    computed.clear()
    if other == "model":
        hidden_states(backbone, "another", texts, tmp_path)
    else:
        hidden_states(backbone, "model", texts[::-1], tmp_path)
    assert computed


@pytest.mark.parametrize("damage", ["short", "long", "unsealed"])
def test_damaged_states_are_computed_again(backbone, texts, tmp_path, computed, damage):
    expected = [hidden_states(backbone, "model", texts, tmp_path)[i].clone() for i in range(len(texts))]
    (data,) = tmp_path.glob("*.bf16")
    (seal,) = tmp_path.glob("*.json")
    if damage == "unsealed":
        seal.unlink()
    else:
        content = data.read_bytes()
        data.write_bytes(content[:-2] if damage == "short" else content + b"\0\0")
    computed.clear()
    states = hidden_states(backbone, "model", texts, tmp_path)
    assert computed
    assert all(torch.equal(states[i], expected[i]) for i in range(len(texts)))


def test_a_failed_pass_leaves_nothing_behind(backbone, texts, tmp_path, monkeypatch):
    def fail(tokens):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backbone, "forward_batch", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        hidden_states(backbone, "model", texts, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", [Text((1,), (1,) * 512), Text((1,), (2, VOCAB))])
def test_texts_of_another_model_are_refused(backbone, texts, tmp_path, text):
    with pytest.raises(ValueError, match="512 positions and 24 tokens"):
        hidden_states(backbone, "model", [*texts, text], tmp_path)
