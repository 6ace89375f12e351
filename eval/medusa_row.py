"""The row of Medusa in the paper's table, which has heads and a tree of its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entmtp_env.engine import SHIPPED_HEADS
from entmtp_env.trees import TopologyBank, published_trees
from eval.environment import make_live_env
from policies import SchedulingEnv

MEDUSA = "medusa-default"
"""Name of the row."""

MEDUSA_TREE = "medusa-7b-stage1"
"""Medusa's published tree for heads trained on a frozen model (arXiv 2401.10774)."""


def medusa_heads(settings: Mapping[str, Any]) -> str:
    """Which heads the settings of ``eval paper`` mean; empty when ``auto`` finds none for the model."""
    if settings["medusa_heads"] != "auto":
        return str(settings["medusa_heads"])
    return "medusa" if "medusa" in SHIPPED_HEADS.get(settings["model"], ()) else ""


def make_medusa_env(settings: Mapping[str, Any], prompts: str, stack: contextlib.ExitStack) -> SchedulingEnv:
    """The environment of the row: no bank has its tree, and its heads are not those that a bank is made for.

    Args:
        settings: Fields of ``eval paper``, of which :func:`medusa_heads` names heads.
        prompts: The prompt set.
        stack: Closes it.

    Raises:
        ValueError: When the heads are of another architecture, or a setting is wrong.
        FileNotFoundError: When the heads, the model or a prompt file is missing.
    """
    heads = medusa_heads(settings)
    bank = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bank.json"
    TopologyBank([published_trees()[MEDUSA_TREE]], name=MEDUSA_TREE).save(bank)
    env = make_live_env({**settings, "heads": heads, "bank": str(bank)}, prompts, settings["env_id"])
    stack.callback(env.close)
    unwrapped: Any = env.unwrapped
    arch = unwrapped.manifest["heads_arch"]
    if arch != "medusa":
        raise ValueError(f"medusa_heads {heads!r} are {arch} heads; pass heads of the architecture medusa")
    return env
