import json
from random import Random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from entmtp_env.decoding import load_heads, save_heads
from entmtp_env.decoding.checkpoint import _sha256, heads_fingerprint, read_manifest
from tests.tiny import tiny_backbone, tiny_heads

ARCHS = ("medusa", "hydra", "hydra-prefix")


@pytest.fixture(scope="module")
def heads():
    return tiny_heads(tiny_backbone(), pack=False)


@pytest.fixture
def path(heads, tmp_path):
    save_heads(heads, tmp_path / "heads.safetensors", manifest={"model_fingerprint": "abc", "seed": 3})
    return tmp_path / "heads.safetensors"


def rewrite(path, change):
    """Change metadata and tensors in place, with a right checksum: the file is whole, but wrong."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(metadata, tensors)
    metadata.pop("sha256")
    metadata["sha256"] = _sha256(sorted(metadata.items()), tensors)
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize("arch", ARCHS)
def test_round_trip_in_float32_is_exact(arch, tmp_path):
    heads = tiny_heads(tiny_backbone(), arch, pack=False)
    save_heads(heads, tmp_path / "heads.safetensors", dtype=torch.float32)
    loaded = load_heads(tmp_path / "heads.safetensors")
    assert loaded.config == heads.config
    assert loaded.state_dict().keys() == heads.state_dict().keys()
    for name, tensor in heads.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
        assert loaded.state_dict()[name].dtype is tensor.dtype
    assert heads_fingerprint(loaded) == heads_fingerprint(heads)
    assert not loaded.training


def test_the_default_rounds_to_bfloat16(heads, path):
    stored, loaded = heads.state_dict(), load_heads(path).state_dict()
    for name, tensor in stored.items():
        expected = tensor.bfloat16().float() if tensor.is_floating_point() else tensor
        assert torch.equal(loaded[name], expected)


def test_neither_embeddings_nor_lm_head_are_stored(heads, path):
    assert set(load_file(path)) == {"vocab_ids", *(name for name, _ in heads.named_parameters())}


def test_loaded_heads_decode_like_the_saved(heads, tmp_path):
    backbone = tiny_backbone()
    save_heads(heads, tmp_path / "h.safetensors", dtype=torch.float32)
    loaded = load_heads(tmp_path / "h.safetensors")
    loaded.attach(backbone)
    x = torch.randn(3, loaded.inputs(2) * 32)
    assert torch.equal(loaded.logits(2, x), heads.logits(2, x))


def test_the_manifest_is_kept(path):
    assert read_manifest(path) == {"model_fingerprint": "abc", "seed": 3}


def test_the_fingerprint_tells_weights_and_configurations_apart(heads):
    changed = tiny_heads(tiny_backbone(), pack=False)
    assert heads_fingerprint(changed) == heads_fingerprint(heads)
    changed.norms[2].weight.data[5] += 0.25
    assert heads_fingerprint(changed) != heads_fingerprint(heads)
    assert heads_fingerprint(tiny_heads(tiny_backbone(), "hydra", pack=False)) != heads_fingerprint(heads)


def test_packed_heads_are_neither_saved_nor_fingerprinted(tmp_path):
    packed = tiny_heads(tiny_backbone())
    with pytest.raises(ValueError, match=r"before pack\(\)"):
        save_heads(packed, tmp_path / "heads.safetensors")
    with pytest.raises(ValueError, match=r"before pack\(\)"):
        heads_fingerprint(packed)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m train heads"):
        load_heads(tmp_path / "none.safetensors")


def drop(metadata, tensors):
    del tensors["norms.1.weight"]


def add(metadata, tensors):
    tensors["norms.9.weight"] = torch.ones(32)


def reshape(metadata, tensors):
    tensors["norms.1.weight"] = torch.ones(31)


def drop_vocabulary(metadata, tensors):
    del tensors["vocab_ids"]


def shorten_vocabulary(metadata, tensors):
    tensors["vocab_ids"] = tensors["vocab_ids"][:-1].clone()


def repeat_vocabulary(metadata, tensors):
    tensors["vocab_ids"][0] = tensors["vocab_ids"][1]


def spoil(metadata, tensors):
    tensors["norms.1.weight"][3] = float("nan")


def replace_manifest(metadata, tensors):
    metadata["manifest"] = "[1]"


def change_config(**values):
    def change(metadata, tensors):
        metadata["config"] = json.dumps(json.loads(metadata["config"]) | values)

    return change


def drop_config(metadata, tensors):
    del metadata["config"]


def change_format(metadata, tensors):
    metadata["format"] = "pt"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "norms.1.weight"),
        (add, "norms.9.weight"),
        (reshape, "norms.1.weight"),
        (drop_vocabulary, "vocab_ids"),
        (shorten_vocabulary, "20 distinct ids"),
        (repeat_vocabulary, "20 distinct ids"),
        (change_config(depth=3), "mlps.3"),
        (change_config(arch="eagle"), "'eagle' is unknown"),
        (change_config(depth="4"), "does not hold draft heads"),
        (change_config(depth=10**9), "1000000000 heads of 2 layers in"),
        (change_config(hidden_size=10**6, intermediate_size=10**7), "size mismatch"),
        (change_config(rms_norm_eps=float("nan")), "NaN is no number"),
        (change_config(rms_norm_eps=2.0), "rms_norm_eps must be between 0 and 1"),
        (spoil, "not finite in norms.1.weight"),
        (change_config(colour=1), "colour"),
        (drop_config, "config"),
        (change_format, "format 'pt', expected 'entmtp-heads-1'"),
    ],
)
def test_wrong_contents_are_refused(path, change, message):
    """Trap 13: nothing missing or left over is ignored, checksum or not."""
    rewrite(path, change)
    with pytest.raises(ValueError, match=message) as caught:
        load_heads(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", [replace_manifest, lambda metadata, tensors: metadata.pop("manifest")])
def test_a_manifest_that_is_none_is_refused(path, change):
    rewrite(path, change)
    with pytest.raises(ValueError, match="has no manifest of draft heads"):
        read_manifest(path)
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match="has no manifest of draft heads"):
        read_manifest(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "heads.safetensors"
    save_file({"lm_head.weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="format None"):
        load_heads(path)
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match="does not hold draft heads"):
        load_heads(path)


def test_truncated_files_are_refused(path):
    content = path.read_bytes()
    for size in (0, 4, 8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="does not hold draft heads"):
            load_heads(path)


def test_flipped_bits_are_refused(path):
    """Most in the header, where a changed name, shape or constant could pass unseen."""
    content, random = path.read_bytes(), Random(0)
    header = 8 + int.from_bytes(content[:8], "little")
    bits = random.sample(range(8 * header), 100) + random.sample(range(8 * header, 8 * len(content)), 30)
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="does not hold draft heads"):
            load_heads(path)
    path.write_bytes(content)
    load_heads(path)
