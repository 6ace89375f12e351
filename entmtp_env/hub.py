"""Draft heads by file, folder or Hugging Face repository; publishing one's own."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError

from entmtp_env.decoding.backbone import Backbone
from entmtp_env.decoding.checkpoint import load_heads, read_manifest
from entmtp_env.decoding.heads import DraftHeads
from entmtp_env.decoding.published import PUBLISHED_FILES, load_published
from entmtp_env.files import atomic_path, write_text_atomically
from entmtp_env.hub_remedy import hub_remedy
from entmtp_env.model_card import model_card

WEIGHTS = "heads.safetensors"
"""Name of our own heads in a folder or repository."""


def from_pretrained(name: str, backbone: Backbone) -> DraftHeads:
    """Load draft heads for a base model, in our format or as Medusa's and Hydra's authors released theirs.

    Args:
        name: A ``.safetensors`` file, a folder, or a Hugging Face repository.
        backbone: The base model; attach the heads to it before use.

    Returns:
        Unattached heads on the CPU.

    Raises:
        FileNotFoundError: When there are none; the message says what to do.
        ValueError: When they are damaged, or do not fit the base model.
    """
    path = find_heads(name)
    return load_published(path, backbone) if path.is_dir() else load_heads(path)


def find_heads(name: str) -> Path:
    """The file of our own heads, or the folder of released ones, fetched from the hub when it is there.

    Raises:
        FileNotFoundError: When there is neither a file or folder here nor such a repository to be had.
    """
    path = Path(name).expanduser()
    if not path.exists() and is_repository(name):
        path = _fetch(name)
    if path.is_dir():
        return path / WEIGHTS if (path / WEIGHTS).is_file() else path
    if not path.is_file():
        raise FileNotFoundError(f"no draft heads at {name}; train them with: python -m train heads --help")
    return path


def is_repository(name: str) -> bool:
    """Whether the name can be that of a Hugging Face repository, ``owner/name``."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None and not name.endswith(
        (".safetensors", ".pt")
    )


def _fetch(repository: str) -> Path:
    try:
        return Path(snapshot_download(repository, allow_patterns=["config.json", WEIGHTS, *PUBLISHED_FILES]))
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FileNotFoundError(
            f"the draft heads {repository!r} are neither a file or folder here, nor to be had from the "
            f"Hugging Face hub; {hub_remedy(repository, error)} ({reason})"
        ) from error


def save_pretrained(heads: str | Path, folder: str | Path, repository: str = "owner/name") -> None:
    """Write a folder that :func:`from_pretrained` loads: weights, configuration and model card.

    Args:
        heads: A checkpoint of :func:`entmtp_env.decoding.save_heads`.
        folder: Where to; made when missing.
        repository: The name under which the card tells to load them.

    Raises:
        FileNotFoundError: When there is no such checkpoint.
        ValueError: When it is damaged or none of ours.
    """
    config, manifest = load_heads(heads).config, read_manifest(heads)
    folder = Path(folder)
    with atomic_path(folder / WEIGHTS) as temporary:
        shutil.copyfile(heads, temporary)
    # The header of the weights is what is read; this is for people, and for the hub's download counter.
    write_text_atomically(folder / "config.json", json.dumps(dataclasses.asdict(config), indent=2) + "\n")
    write_text_atomically(folder / "README.md", model_card(config, manifest, repository))


def push_to_hub(heads: str | Path, repository: str, *, private: bool = False) -> str:
    """Publish draft heads; the repository is made when missing.

    Args:
        heads: A checkpoint of :func:`entmtp_env.decoding.save_heads`.
        repository: ``owner/name``.
        private: Whether a new repository is for its owner alone.

    Returns:
        Where they can be seen.

    Raises:
        FileNotFoundError: When there is no such checkpoint.
        ValueError: When it is none of ours, or the hub refuses; the message says why.
    """
    if not is_repository(repository):
        raise ValueError(f"{repository!r} is no name of a Hugging Face repository; expected owner/name")
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(heads, folder, repository)
        api = HfApi()
        try:
            url = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Draft heads")
        except HfHubHTTPError as error:
            raise ValueError(
                f"the Hugging Face hub did not take {repository}: {error}; log in with: hf auth login"
            ) from error
        except Exception as error:
            # Without a connection they are those of the client's HTTP library, and that has changed.
            if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
                raise
            raise ValueError(
                f"the Hugging Face hub cannot be reached to publish {repository}: {error}"
            ) from error
    return str(url)
