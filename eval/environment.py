"""The live environment that recorded settings describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from policies import SchedulingEnv

_KEYS = (
    "model",
    "heads",
    "bank",
    "acceptance",
    "max_new_tokens",
    "probe",
    "features",
    "capacity",
    "dtype",
    "device",
)


def make_live_env(settings: Mapping[str, Any], prompts: str, env_id: str) -> SchedulingEnv:
    """Make an environment.

    Args:
        settings: Fields of a command such as :class:`eval.compare.Compare`; those that are no keyword of
            the live environment are left out.
        prompts: The prompt set.
        env_id: Gymnasium id.

    Raises:
        ValueError: When a setting is out of range or unknown.
        FileNotFoundError: When a bank or a prompt file is missing.
    """
    env: SchedulingEnv = gymnasium.make(env_id, prompts=prompts, **{key: settings[key] for key in _KEYS})
    return env
