import gymnasium
import pytest

import entmtp_env  # noqa: F401
from entmtp_env import hub
from entmtp_env.chat_templates import VICUNA
from entmtp_env.decoding import save_heads
from entmtp_env.engine import get_engine, heads_path
from entmtp_env.hub import save_pretrained
from entmtp_env.models import NAMED_MODELS, NamedModel, load_pretrained
from tests.published import hydra_state, medusa_state, save_hydra, save_medusa, save_vicuna
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
    auto = get_engine(tiny_files.model, tiny_files.heads, "float32", "auto")
    assert auto.backbone is first.backbone
    half = get_engine(tiny_files.model, tiny_files.heads, "bfloat16", "cpu")
    assert half.backbone is not first.backbone
    # Environments of one device do not time each other, whatever they run.
    assert half.lock is first.lock


def test_heads_that_are_not_there_are_named(tiny_files):
    with pytest.raises(FileNotFoundError, match="no draft heads ship for the model"):
        heads_path(tiny_files.model, "auto")
    with pytest.raises(FileNotFoundError, match=r"no draft heads at none\.safetensors"):
        heads_path("smollm2", "none.safetensors")
    assert heads_path("smollm2", "auto").name == "smollm2-hydra-prefix.safetensors"


def test_published_heads_run_in_the_environment(tmp_path):
    """A Vicuna and heads as they are on the hub: the text of autoregressive decoding, in fewer steps."""
    model = save_vicuna(tmp_path / "vicuna")
    save_hydra(tmp_path / "hydra", hydra_state(model))
    save_medusa(tmp_path / "medusa", medusa_state())
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "w1 w4 w8"}')
    texts, fingerprints = set(), set()
    for heads in ("hydra", "medusa"):
        env = gymnasium.make(
            "EntMTP/Live-v0",
            model=str(tmp_path / "vicuna"),
            heads=str(tmp_path / heads),
            prompts=str(tmp_path / "prompts.jsonl"),
            max_new_tokens=24,
            capacity=256,
            dtype="float32",
            device="cpu",
        )
        fingerprints.add(env.unwrapped.manifest["heads_fingerprint"])
        assert env.unwrapped.manifest["heads"] == heads
        for tree in ("autoregressive", "hydra-default"):
            env.reset(seed=0)
            info, steps, done = {}, 0, False
            while not done:
                *_, terminated, truncated, info = env.step(env.unwrapped.bank.index(tree))
                steps, done = steps + 1, terminated or truncated
            texts.add(info["text"])
            assert (steps < info["total_tokens"]) == (tree == "hydra-default")
    assert len(texts) == 1
    assert len(fingerprints) == 2


def test_a_vicuna_gets_its_chat_template(tmp_path):
    save_vicuna(tmp_path / "vicuna-tiny")
    pretrained = load_pretrained(str(tmp_path / "vicuna-tiny"))
    assert pretrained.tokenizer.chat_template == VICUNA
    save_vicuna(tmp_path / "other")
    assert load_pretrained(str(tmp_path / "other")).tokenizer.chat_template is None
    (tmp_path / "vicuna-tiny" / "chat_template.jinja").write_text("own")
    assert load_pretrained(str(tmp_path / "vicuna-tiny")).tokenizer.chat_template == "own"


def test_a_name_that_means_other_weights_without_its_wheel_says_what_to_install(
    tiny_files, tmp_path, monkeypatch
):
    known = NamedModel(tiny_files.model, wheel="no_such_package", gguf_file="", fetch="pip install it")
    monkeypatch.setitem(NAMED_MODELS, "tiny", known)
    path = tmp_path / "heads.safetensors"
    save_heads(tiny_heads(tiny_backbone(), pack=False), path, manifest={"model_fingerprint": "other"})
    with pytest.warns(UserWarning, match=r"other weights than those of 'tiny'.*: pip install it$"):
        get_engine("tiny", str(path), "float32", "cpu")
    with pytest.warns(UserWarning, match="fewer drafts may be accepted$"):
        get_engine(tiny_files.model, str(path), "float32", "cpu")


def test_heads_on_the_hub_are_named_by_their_repository(tiny_files, tmp_path, monkeypatch):
    folder = tmp_path / "snapshots" / "0123"
    save_pretrained(tiny_files.heads, folder)
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(folder))
    assert get_engine(tiny_files.model, "me/heads", "float32", "cpu").manifest["heads"] == "me/heads"
