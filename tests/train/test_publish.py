from pathlib import Path

from entmtp_env import hub
from train.publish import Publish, publish


class FakeHub:
    uploaded = ()

    def create_repo(self, repository, *, private, exist_ok):
        assert private
        assert exist_ok
        return f"https://huggingface.co/{repository}"

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        FakeHub.uploaded = repo_id, sorted(path.name for path in Path(folder_path).iterdir())


def test_publishing_uploads_and_says_where(tiny_files, monkeypatch, capsys):
    monkeypatch.setattr(hub, "HfApi", FakeHub)
    publish(Publish(tiny_files.heads, "me/heads", private=True))
    assert capsys.readouterr().out == "https://huggingface.co/me/heads\n"
    assert FakeHub.uploaded == ("me/heads", ["README.md", "config.json", "heads.safetensors"])
