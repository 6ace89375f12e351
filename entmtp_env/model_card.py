"""Model cards of draft heads, made from their manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huggingface_hub import ModelCardData

from entmtp_env.decoding.heads import HeadsConfig
from entmtp_env.models import NAMED_MODELS


def model_card(config: HeadsConfig, manifest: dict[str, Any], repository: str) -> str:
    """The README.md of a repository of draft heads.

    Args:
        config: Architecture of the heads.
        manifest: What ``python -m train heads`` stored with them; whatever is missing is left out.
        repository: Where the heads are to be had, ``owner/name``.

    Returns:
        Markdown with the hub's metadata in front.
    """
    model = str(manifest.get("model", "a base model"))
    base = NAMED_MODELS[model].repository if model in NAMED_MODELS else model
    data = ModelCardData(
        base_model=base if base.count("/") == 1 and not base.startswith((".", "/", "~")) else None,
        library_name="entmtp-env",
        tags=["speculative-decoding", "draft-heads", config.arch],
    )
    facts = {
        "architecture": config.arch,
        "heads": config.depth,
        "residual blocks a head": config.num_layers,
        "draft vocabulary": f"{config.draft_vocab_size} tokens"
        + (f", {config.deep_vocab_size} from depth 2 on" if config.deep_vocab_size else ""),
        "hidden size": config.hidden_size,
        "fingerprint of the base model": manifest.get("model_fingerprint"),
        "fingerprint of the training texts": manifest.get("texts_fingerprint"),
        "share of the replies in the draft vocabulary": manifest.get("draft_vocab_coverage"),
        "seed": manifest.get("seed"),
        "time": manifest.get("time"),
    }
    machine, libraries = manifest.get("machine") or {}, manifest.get("libraries") or {}
    facts |= {name: machine.get(name) for name in ("processor", "cores", "accelerator")}
    facts["libraries"] = ", ".join(f"{name} {version}" for name, version in libraries.items()) or None
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {config.arch} draft heads for {base}",
        "They draft trees of next tokens that the base model verifies in one pass (speculative decoding). "
        "Under greedy and sampled decoding the text is the base model's own.",
        f"```\npython -m eval compare --model {model} --heads {repository} --policies hydra-default\n```",
        _table(("", ""), [(name, value) for name, value in facts.items() if value is not None]),
    ]
    held_out = manifest.get("held_out")
    if held_out:
        rows = zip(range(1, config.depth + 1), held_out["rank0"], held_out["loss"], strict=True)
        parts += [
            "On texts held out of training: how often the true token is the head's first, and the loss.",
            _table(("depth", "first", "loss"), list(rows)),
        ]
    if "command" in manifest:
        parts += [
            "Made with the following command; the file's header has all settings and the learning curve.",
            f"```\n{manifest['command']}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)
