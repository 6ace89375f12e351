import pytest

from entmtp_env.decoding import save_heads
from entmtp_env.engine import get_engine, heads_path
from tests.tiny import tiny_backbone, tiny_heads


def test_engines_are_loaded_once_and_share_the_base_of_their_model(tiny_files, tmp_path):
    other = tmp_path / "medusa.safetensors"
    save_heads(tiny_heads(tiny_backbone(), arch="medusa", pack=False), other)
    first = get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")
    second = get_engine(tiny_files.model, str(other), "float32", "cpu")
    assert get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu") is first
    assert second.backbone is first.backbone
    assert second.lock is first.lock
    assert second.heads.config.arch == "medusa"
    assert second.manifest["heads_fingerprint"] != first.manifest["heads_fingerprint"]
    assert second.manifest["model_fingerprint"] == first.manifest["model_fingerprint"]
    half = get_engine(tiny_files.model, tiny_files.heads, "bfloat16", "cpu")
    assert half.backbone is not first.backbone


def test_heads_that_are_not_there_are_named(tiny_files):
    with pytest.raises(FileNotFoundError, match="no draft heads ship for the model"):
        heads_path(tiny_files.model, "auto")
    with pytest.raises(FileNotFoundError, match=r"no draft heads at none\.safetensors"):
        heads_path("smollm2", "none.safetensors")
    assert heads_path("smollm2", "auto").name == "smollm2-hydra-prefix.safetensors"
