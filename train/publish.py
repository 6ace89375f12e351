"""Publish draft heads on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from entmtp_env.hub import push_to_hub


@dataclass(frozen=True)
class Publish:
    """Publish draft heads on the Hugging Face hub, with a model card made from their manifest.

    Log in first ("hf auth login"). The card has the training command with its paths: read it.

    Attributes:
        heads: Checkpoint written by "train heads".
        repository: Name there, owner/name; made when missing. It then serves as --heads.
        private: A new repository is for its owner alone.
    """

    heads: Path
    repository: str
    private: bool = False


def publish(config: Publish) -> None:
    """Publish and print where.

    Raises:
        FileNotFoundError: When there is no such checkpoint.
        ValueError: When it is none of ours, or the hub refuses.
    """
    print(push_to_hub(config.heads, config.repository, private=config.private))
