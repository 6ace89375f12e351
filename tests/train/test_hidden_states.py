from concurrent.futures import ThreadPoolExecutor

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


def values(states):
    return [states[i].clone() for i in range(len(LENGTHS))]


def assert_equal(states, expected):
    assert all(torch.equal(one, two) for one, two in zip(values(states), expected, strict=True))


def tokens_of(texts):
    return sum(len(text.tokens) for text in texts)


def files(folder):
    (data,), (index,) = folder.glob("*.bf16"), folder.glob("*.json")
    return data, index


def test_what_is_on_disk_is_not_computed_again(backbone, texts, tmp_path, computed, capsys):
    expected = values(hidden_states(backbone, "model", texts, tmp_path))
    computed.clear()
    capsys.readouterr()
    assert_equal(hidden_states(backbone, "model", texts, tmp_path), expected)
    assert not computed
    assert capsys.readouterr().err == ""
    assert files(tmp_path)[0].stat().st_size == 2 * 32 * tokens_of(texts)


@pytest.mark.parametrize("present", [[0], [1, 3, 5], [0, 1, 2, 3, 4]])
def test_only_missing_texts_are_computed(backbone, texts, tmp_path, computed, present):
    expected = values(hidden_states(backbone, "model", texts, tmp_path / "whole"))
    hidden_states(backbone, "model", [texts[i] for i in present], tmp_path)
    computed.clear()
    states = hidden_states(backbone, "model", texts, tmp_path)
    missing = [text for i, text in enumerate(texts) if i not in present]
    assert sum(rows for rows, _ in computed) == len(missing)
    for one, two in zip(values(states), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0.01, atol=0.01)
    assert files(tmp_path)[0].stat().st_size == 2 * 32 * tokens_of(texts)


def test_order_and_repetition_of_texts_are_free(backbone, texts, tmp_path, computed):
    expected = values(hidden_states(backbone, "model", texts, tmp_path))
    computed.clear()
    states = hidden_states(backbone, "model", [texts[4], texts[0], texts[4]], tmp_path)
    assert not computed
    assert all(torch.equal(states[i], expected[j]) for i, j in enumerate((4, 0, 4)))


def test_the_same_text_twice_is_computed_once(backbone, texts, tmp_path, computed):
    states = hidden_states(backbone, "model", [*texts, *texts], tmp_path)
    assert sum(rows for rows, _ in computed) == len(texts)
    assert all(torch.equal(states[i], states[i + len(texts)]) for i in range(len(texts)))


def test_each_model_and_element_type_has_its_own_file(backbone, texts, tmp_path, computed):
    hidden_states(backbone, "model", texts, tmp_path)
    hidden_states(backbone, "another", texts, tmp_path)
    hidden_states(tiny_backbone(dtype=torch.bfloat16), "model", texts, tmp_path)
    assert len(list(tmp_path.glob("*.bf16"))) == 3
    assert sum(rows for rows, _ in computed) == 2 * len(texts)


def test_an_interrupted_computation_keeps_what_was_computed(backbone, texts, tmp_path, computed, monkeypatch):
    expected = values(hidden_states(backbone, "model", texts, tmp_path / "whole"))
    passes, forward = len(computed), backbone.forward_batch
    computed.clear()

    def fail_at_third(tokens):
        if len(computed) == 2:
            raise KeyboardInterrupt
        return forward(tokens)

    monkeypatch.setattr(backbone, "forward_batch", fail_at_third)
    with pytest.raises(KeyboardInterrupt):
        hidden_states(backbone, "model", texts, tmp_path)
    monkeypatch.setattr(backbone, "forward_batch", forward)
    assert_equal(hidden_states(backbone, "model", texts, tmp_path), expected)
    assert len(computed) == passes


def test_a_killed_computation_keeps_what_was_saved(backbone, texts, tmp_path, computed, monkeypatch):
    """Killed without a word: as if only the saves before had happened, and part of a row were written."""
    monkeypatch.setattr(train.hidden_states, "_PASSES_PER_SAVE", 2)
    saves, save = [], train.hidden_states._save_index

    def saved(file, data, starts, rows):
        save(file, data, starts, rows)
        saves.append((data, rows, data.with_suffix(".json").read_text()))

    monkeypatch.setattr(train.hidden_states, "_save_index", saved)
    expected = values(hidden_states(backbone, "model", texts, tmp_path))
    data, rows, index = saves[0]
    assert 0 < rows < tokens_of(texts)
    data.with_suffix(".json").write_text(index)
    data.write_bytes(data.read_bytes()[: 2 * 32 * (rows + 3) + 5])
    passes = len(computed)
    computed.clear()
    assert_equal(hidden_states(backbone, "model", texts, tmp_path), expected)
    assert len(computed) == passes - 2
    assert data.stat().st_size == 2 * 32 * tokens_of(texts)


@pytest.mark.parametrize(
    "damage", ["no index", "cut index", "foreign index", "no data", "cut data", "longer data"]
)
def test_damaged_files_are_repaired(backbone, texts, tmp_path, computed, damage):
    expected = values(hidden_states(backbone, "model", texts, tmp_path))
    computed.clear()
    data, index = files(tmp_path)
    if damage == "no index":
        index.unlink()
    elif damage == "cut index":
        index.write_bytes(index.read_bytes()[:-9])
    elif damage == "foreign index":
        index.write_text("[1, 2]")
    elif damage == "no data":
        data.unlink()
    elif damage == "cut data":
        data.write_bytes(data.read_bytes()[:-1])
    else:
        data.write_bytes(data.read_bytes() + bytes(101))
    assert_equal(hidden_states(backbone, "model", texts, tmp_path), expected)
    assert bool(computed) == (damage != "longer data")
    assert data.stat().st_size == 2 * 32 * tokens_of(texts)


def test_the_file_is_bounded(backbone, texts, tmp_path, computed):
    size = 2 * 32 * tokens_of(texts) / 1e9
    first = values(hidden_states(backbone, "model", texts, tmp_path, gigabytes=1.001 * size))
    computed.clear()
    more = Text((5, 6), (7, 8))
    with pytest.raises(ValueError, match=r"would take .* GB in .*\.bf16, more than cache_gigabytes=.*delete"):
        hidden_states(backbone, "model", [*texts, more], tmp_path, gigabytes=1.001 * size)
    assert not computed
    # What is there already may be read under any bound.
    assert_equal(hidden_states(backbone, "model", texts, tmp_path, gigabytes=0.0), first)
    with pytest.raises(ValueError, match="cache_gigabytes"):
        hidden_states(backbone, "another", texts, tmp_path, gigabytes=0.999 * size)


def test_two_at_once_do_not_disturb_each_other(backbone, texts, tmp_path, computed):
    expected = values(hidden_states(backbone, "model", texts, tmp_path / "whole"))
    computed.clear()
    with ThreadPoolExecutor(2) as pool:
        for own in (texts[:4], texts[2:]):
            pool.submit(hidden_states, backbone, "model", own, tmp_path)
    assert sum(rows for rows, _ in computed) == len(texts)
    for one, two in zip(values(hidden_states(backbone, "model", texts, tmp_path)), expected, strict=True):
        torch.testing.assert_close(one, two, rtol=0.01, atol=0.01)
    assert sum(rows for rows, _ in computed) == len(texts)


@pytest.mark.parametrize("text", [Text((1,), (1,) * 512), Text((1,), (2, VOCAB))])
def test_texts_of_another_model_are_refused(backbone, texts, tmp_path, text):
    with pytest.raises(ValueError, match="512 positions and 24 tokens"):
        hidden_states(backbone, "model", [*texts, text], tmp_path)
