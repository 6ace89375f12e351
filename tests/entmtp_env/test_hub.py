import json
import re
import shutil

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from entmtp_env import hub
from entmtp_env.decoding import save_heads
from entmtp_env.decoding.checkpoint import heads_fingerprint
from entmtp_env.hub import find_heads, from_pretrained, is_repository, push_to_hub, save_pretrained
from tests.published import hydra_state, save_hydra, vicuna
from tests.tiny import tiny_backbone, tiny_heads

MANIFEST = {
    "model": "smollm2",
    "model_fingerprint": "f786c61f206b4138",
    "command": "python -m train heads --texts texts.jsonl.gz",
    "held_out": {"step": 9, "loss": [2.5, 2.9, 3.0, 3.1], "rank0": [0.6, 0.5, 0.4, 0.3]},
    "machine": {"processor": "A|B", "cores": 2, "accelerator": None},
    "libraries": {"torch": "2.13.0"},
}


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def heads(backbone):
    return tiny_heads(backbone, pack=False)


@pytest.fixture
def file(heads, tmp_path):
    save_heads(heads, tmp_path / "mine.safetensors", dtype=torch.float32, manifest=MANIFEST)
    return tmp_path / "mine.safetensors"


class FakeHub:
    """Repositories in folders: what the two calls that publish and the one that fetches do."""

    def __init__(self, root):
        self.root, self.private = root, {}

    def create_repo(self, repository, *, private, exist_ok):
        assert exist_ok
        self.private.setdefault(repository, private)
        return f"https://huggingface.co/{repository}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        assert repo_id in self.private
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)

    def snapshot_download(self, repository, *, allow_patterns):
        if not (self.root / repository).is_dir():
            raise LocalEntryNotFoundError("Cannot find the repository.\nMore lines.")
        assert {"config.json", "heads.safetensors", "hydra_lm_head.pt"} <= set(allow_patterns)
        return str(self.root / repository)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(hub, "HfApi", lambda: fake)
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_what_is_published_is_what_loads(fake, file, heads, backbone):
    assert push_to_hub(file, "me/my-heads", private=True) == "https://huggingface.co/me/my-heads"
    assert fake.private == {"me/my-heads": True}
    assert {path.name for path in (fake.root / "me/my-heads").iterdir()} == {
        "heads.safetensors",
        "config.json",
        "README.md",
    }
    loaded = from_pretrained("me/my-heads", backbone)
    assert heads_fingerprint(loaded) == heads_fingerprint(heads)


def test_a_folder_and_a_file_load_alike(file, heads, backbone, tmp_path):
    save_pretrained(file, tmp_path / "folder")
    for name in (file, tmp_path / "folder"):
        assert heads_fingerprint(from_pretrained(str(name), backbone)) == heads_fingerprint(heads)
    assert (tmp_path / "folder" / "heads.safetensors").read_bytes() == file.read_bytes()
    assert json.loads((tmp_path / "folder" / "config.json").read_text())["arch"] == "hydra-prefix"


def test_released_heads_load_by_folder_and_repository(fake):
    from entmtp_env.decoding import Backbone

    model = vicuna()
    fake.root.mkdir()
    (fake.root / "ankner").mkdir()
    save_hydra(fake.root / "ankner" / "hydra", hydra_state(model))
    base = Backbone(model, torch.float32)
    names = ("ankner/hydra", str(fake.root / "ankner" / "hydra"))
    assert len({heads_fingerprint(from_pretrained(name, base)) for name in names}) == 1


def test_the_card_tells_what_the_manifest_tells(file, tmp_path):
    save_pretrained(file, tmp_path / "folder", "me/my-heads")
    card = ModelCard.load(tmp_path / "folder" / "README.md")
    assert card.data.base_model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert card.data.library_name == "entmtp-env"
    assert "hydra-prefix" in card.data.tags
    for text in ("f786c61f206b4138", "--heads me/my-heads", MANIFEST["command"], "| 2 | 0.5 | 2.9 |", "A/B"):
        assert text in card.text
    # Every line of a table has the same cells.
    assert all(line.count("|") in (3, 4) for line in card.text.splitlines() if line.startswith("|"))
    assert "None" not in card.text


@pytest.mark.parametrize("model", ["runs/x/model", "/models/x", "./x", "my_model"])
def test_a_base_on_this_machine_is_no_base_on_the_hub(heads, tmp_path, model):
    save_heads(heads, tmp_path / "h.safetensors", manifest={"model": model})
    save_pretrained(tmp_path / "h.safetensors", tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.base_model is None
    assert f"draft heads for {model}" in card.text


def test_heads_without_a_manifest_have_a_card(heads, tmp_path):
    save_heads(heads, tmp_path / "h.safetensors")
    save_pretrained(tmp_path / "h.safetensors", tmp_path)
    assert "draft heads for a base model" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "error", [OfflineModeIsEnabled("offline"), LocalEntryNotFoundError("no network"), ValueError("")]
)
def test_a_hub_out_of_reach_is_told(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    expected = f"nor to be had from the Hugging Face hub; fetch with: hf download me/heads ({error})"
    with pytest.raises(FileNotFoundError, match=re.escape(expected)):
        find_heads("me/heads")


def test_a_gated_repository_says_where_access_is_asked_for(monkeypatch):
    def refuse(*_, **__):
        response = type("Response", (), {"headers": {}, "request": None, "status_code": 401})()
        raise GatedRepoError("Access is restricted.", response=response)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=r"huggingface\.co/me/heads: .*: hf auth login \(Access is"):
        find_heads("me/heads")


def test_the_real_client_is_offline_in_the_suite(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="hf download nobody/absent-heads"):
        find_heads("nobody/absent-heads")


def test_a_refused_upload_is_told(fake, file, monkeypatch):
    def refuse(*_, **__):
        response = type("Response", (), {"headers": {}, "request": None, "status_code": 401})()
        raise HfHubHTTPError("401 Unauthorized", response=response)

    monkeypatch.setattr(fake, "create_repo", refuse)
    with pytest.raises(
        ValueError, match="did not take me/heads: 401 Unauthorized; log in with: hf auth login"
    ):
        push_to_hub(file, "me/heads")


def test_without_a_connection_an_upload_says_so(fake, file, monkeypatch):
    # Not of the standard library, and of another module in each version of the hub's client.
    unreachable = type("ConnectError", (Exception,), {"__module__": "httpx"})

    def fail(error):
        def create(*_, **__):
            raise error

        monkeypatch.setattr(fake, "create_repo", create)

    for error in (unreachable("no route to host"), ConnectionError("no route to host")):
        fail(error)
        with pytest.raises(ValueError, match="cannot be reached to publish me/heads: no route to host"):
            push_to_hub(file, "me/heads")
    fail(TypeError("a bug"))
    with pytest.raises(TypeError, match="a bug"):
        push_to_hub(file, "me/heads")


def test_wrong_names_and_files_are_refused_before_anything_is_sent(fake, file, tmp_path):
    with pytest.raises(ValueError, match="expected owner/name"):
        push_to_hub(file, "heads")
    with pytest.raises(FileNotFoundError, match="no draft heads at"):
        push_to_hub(tmp_path / "none.safetensors", "me/heads")
    with pytest.raises(ValueError, match="a folder of released heads"):
        push_to_hub(tmp_path, "me/heads")
    assert not fake.private


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("ankner/hydra-vicuna-7b-v1.3", True),
        ("runs/heads.safetensors", False),
        ("./heads", False),
        ("/tmp/heads", False),
        ("../heads", False),
        ("a/../b", False),
        ("a/b/c", False),
        ("heads", False),
        ("C:\\heads", False),
    ],
)
def test_names_of_repositories(name, is_one):
    assert is_repository(name) is is_one
