"""The live environments that settings describe, each for the policies that are made for it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from entmtp_env.live import LiveEnv
from eval.interleave import Entrant, Turns
from policies import SchedulerPolicy, SchedulingEnv
from policies.registry import make_named_policy, policy_env_id, policy_fingerprint, policy_settings

_KEYS = (
    "model",
    "heads",
    "bank",
    "stages",
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
            the environment are left out.
        prompts: The prompt set.
        env_id: Gymnasium id.

    Raises:
        ValueError: When a setting is out of range or unknown.
        FileNotFoundError: When a bank, stages or a prompt file is missing.
    """
    keywords = _keywords(env_id)
    env: SchedulingEnv = gymnasium.make(
        env_id, prompts=prompts, **{key: settings[key] for key in _KEYS if key in keywords}
    )
    return env


def environment_manifest(env: SchedulingEnv) -> dict[str, Any]:
    """What an environment is made of; of one of your own, also the hash of its class's source file."""
    unwrapped: Any = env.unwrapped
    manifest = dict(unwrapped.manifest)
    source = inspect.getsourcefile(type(unwrapped))
    if source and not type(unwrapped).__module__.startswith("entmtp_env."):
        manifest["source_fingerprint"] = hashlib.sha256(Path(source).read_bytes()).hexdigest()[:16]
    return manifest


def enter_policies(
    settings: Mapping[str, Any],
    prompts: str,
    rows: Mapping[str, str],
    stack: contextlib.ExitStack,
    turns: Turns = "text",
) -> dict[str, Entrant]:
    """Policies with the environments that they are made for, over the same model.

    A policy whose file says what is drafted before its decisions, or which features it reads, gets that,
    whatever the settings say.

    Args:
        settings: As :func:`make_live_env` takes them; ``env_id`` among them stands for the environment that
            schedules a bank.
        prompts: The prompt set.
        rows: Spec of the policy by name of the row.
        stack: Closes the environments.
        turns: ``"step"`` gives every row an environment of its own, ``"text"`` one to all of the same kind.

    Returns:
        Entrants by name of the row.

    Raises:
        ValueError: When a policy or a setting is unknown or wrong.
        FileNotFoundError: When a file is missing.
    """
    envs: dict[tuple[str, str], SchedulingEnv] = {}
    entrants = {}
    for name, spec in rows.items():
        env_id = policy_env_id(spec)
        if env_id == SchedulerPolicy.env_id:
            env_id = settings["env_id"]
        told = policy_settings(spec)
        own = {key: value for key, value in told.items() if value != settings[key]}
        key = " ".join((env_id, *(f"{name}={value}" for name, value in own.items())))
        shared = key, name if turns == "step" else ""
        if shared not in envs:
            envs[shared] = make_live_env({**settings, **own}, prompts, env_id)
            stack.callback(envs[shared].close)
        policy = make_named_policy(spec, envs[shared])
        entrants[name] = Entrant(envs[shared], policy, key, policy_fingerprint(spec))
    return entrants


def _keywords(env_id: str) -> set[str]:
    """What an environment's ``__init__`` names; one that passes keywords on takes those of ``LiveEnv``."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    entry: Any = gymnasium.spec(name).entry_point
    parameters = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry).parameters
    passes_on = any(own.kind is own.VAR_KEYWORD for own in parameters.values())
    return {*parameters, *(inspect.signature(LiveEnv).parameters if passes_on else ())}
