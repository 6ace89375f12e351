import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a failing test; in CI a red run means the change, not the draw.
settings.register_profile("suite", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("suite")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class TinyFiles:
    """A tiny model with tokenizer, heads for it, and prompts, on disk; arguments for an environment."""

    model: str
    heads: str
    prompts: str

    @property
    def kwargs(self):
        return {
            "model": self.model,
            "heads": self.heads,
            "prompts": self.prompts,
            "dtype": "float32",
            "device": "cpu",
            "max_new_tokens": 24,
            "capacity": 256,
        }


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory) -> TinyFiles:
    from entmtp_env.decoding import save_heads
    from tests.tiny import save_tiny_model, tiny_backbone, tiny_heads

    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder / "model")
    save_heads(tiny_heads(tiny_backbone(), pack=False), folder / "heads.safetensors")
    prompts = [
        {"id": f"t{i}", "prompt": " ".join(f"w{(7 * i + j) % 19}" for j in range(1 + i))} for i in range(6)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return TinyFiles(*(str(folder / name) for name in ("model", "heads.safetensors", "prompts.jsonl")))
