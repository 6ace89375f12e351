"""Policies by name: the built-in ones, policy files, and classes of your own."""

from __future__ import annotations

import difflib
import hashlib
import inspect
from pathlib import Path
from typing import Any, cast

from gymnasium.vector import VectorEnv

from entmtp_env.import_path import NoSuchModuleError, import_object
from entmtp_env.spec import Spec, parse_spec
from policies.base import Predictor, SchedulerPolicy, SchedulingEnv
from policies.named_files import named_files
from policies.policy_file import PolicyFile
from policies.shipped import policy_path

# Imported on first use, so that a policy may need an optional package without the others needing it.
BUILT_IN = {
    "autoregressive": "policies.static:Autoregressive",
    "bandit": "policies.bandit:Bandit",
    "eagle2": "policies.staged:Eagle2",
    "eagle2-cost-aware": "policies.staged:Eagle2CostAware",
    "ema-ladder": "policies.ema_ladder:EmaLadder",
    "hydra-default": "policies.static:HydraDefault",
    "ladder": "policies.ladder:Ladder",
    "learned": "policies.learned:Learned",
    "oracle": "policies.oracle:Oracle",
    "prompt-lookup": "policies.lookup:PromptLookup",
    "random": "policies.random:Random",
    "staged-learned": "policies.staged_learned:StagedLearned",
    "staged-threshold": "policies.staged:StagedThreshold",
    "static": "policies.static:Static",
    "threshold": "policies.threshold:Threshold",
    "ucb": "policies.ucb:Ucb",
    "value": "policies.value:Value",
}


def policy_names() -> tuple[str, ...]:
    """Names of the built-in policies, sorted."""
    return tuple(sorted(BUILT_IN))


def make_policy(spec: str, env: SchedulingEnv) -> Predictor:
    """Build a policy from a spec.

    Args:
        spec: ``name``, ``name:key=value,...``, ``static:<tree>``, ``name@file`` (a `PolicyFile`, or what the
            class reads by its ``read_file(path, env)``, which returns keyword arguments of the class; instead
            of a file, the name of a shipped bank means the policy that ships for it),
            ``name:key=value,...@file`` to replace options in the file, or
            ``package.module:Class:key=value,...`` (or ``,`` before the options) for any class with
            ``predict``, built as ``Class(env, **options)``; modules in the current directory are found.
        env: The environment to schedule.

    Returns:
        The policy.

    Raises:
        ValueError: When the policy or an option is unknown, an option is wrong, or a file does not fit.
        FileNotFoundError: When there is no such policy file.
        TypeError: When what was built has no ``predict``.

    Example:
        >>> make_policy("threshold:score=deep_path_value,on=0.4", env)  # doctest: +SKIP
    """
    parsed = parse_spec(spec)
    name, argument = _name_and_argument(parsed)
    factory = _find(name)
    options: dict[str, Any] = dict(parsed.options)
    if parsed.file is not None:
        options = _read_file(name, factory, parsed.file, env) | options
    elif hasattr(factory, "read_file"):
        raise ValueError(f"policy {name!r} is read from a file: write {name}@<file>")
    if argument:
        option = getattr(factory, "argument", None)
        if option is None or option in options:
            raise ValueError(f"policy {name!r} takes no argument {argument!r} here; options are key=value")
        options[option] = argument
    policy = _build(name, factory, env, options)
    if not callable(getattr(policy, "predict", None)):
        raise TypeError(
            f"{name} has no predict(observation, state, episode_start, deterministic); subclass "
            "policies.SchedulerPolicy and write act, or add that method"
        )
    return policy


def policy_env_id(spec: str) -> str:
    """Gymnasium id of the environment that a policy schedules: what its class says, else that of the bank.

    Args:
        spec: As :func:`make_policy` takes it; a file in it is not read.

    Raises:
        ValueError: When the policy is unknown; the message names the spec.
    """
    try:
        name, _ = _name_and_argument(parse_spec(spec))
        env_id: str = getattr(_find(name), "env_id", SchedulerPolicy.env_id)
    except ValueError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error
    return env_id


def policy_settings(spec: str) -> dict[str, str]:
    """Settings of the environment that a policy's file asks for: ``probe`` and ``features``.

    None of them when it has no file, and none that the file does not tell.

    Args:
        spec: As :func:`make_policy` takes it.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When the policy is unknown or the file is damaged; the message names the spec.
    """
    try:
        parsed = parse_spec(spec)
        name, _ = _name_and_argument(parsed)
        if parsed.file is None:
            return {}
        file = _describe_file(_find(name), policy_path(name, parsed.file))
        told = {"probe": file.probe, "features": file.features} if file else {}
        return {key: value for key, value in told.items() if value is not None}
    except ValueError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error


def policy_fingerprint(spec: str) -> str:
    """Hash of what a spec does not say: its file, the source file of a class of your own, what options name.

    Args:
        spec: As :func:`make_policy` takes it.

    Returns:
        16 hex digits; empty for a built-in policy without a file.

    Raises:
        FileNotFoundError: When there is no such file.
        ValueError: When the policy is unknown or its file is damaged.
    """
    parsed = parse_spec(spec)
    name, argument = _name_and_argument(parsed)
    factory, options = _find(name), {"": argument, **parsed.options}
    sources: list[str | Path] = []
    if parsed.file is not None:
        path = policy_path(name, parsed.file)
        sources.append(path)
        if file := _describe_file(factory, path):
            options = {**file.options, **options}
    if name not in BUILT_IN and (source := inspect.getsourcefile(factory)):
        sources.append(source)
    sources += named_files(options)
    if not sources:
        return ""
    return hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()[:16]


def make_named_policy(spec: str, env: SchedulingEnv | VectorEnv[Any, Any, Any]) -> Predictor:
    """Build a policy as :func:`make_policy` does; the message of a wrong one names the spec."""
    try:
        # Policies read the bank and the feature names, and a vector environment has both.
        return make_policy(spec, cast(SchedulingEnv, env))
    except ValueError as error:
        raise ValueError(f"policy {spec!r}: {error}") from error


def _name_and_argument(parsed: Spec) -> tuple[str, str]:
    """A built-in name and its bare argument, or ``module:Class`` and none."""
    name, argument = parsed.name, parsed.argument
    if name in BUILT_IN:
        return name, argument
    return f"{name}:{argument}" if argument else name, ""


def _describe_file(factory: Any, path: Path) -> PolicyFile | None:
    """What is in a policy file; ``None`` for one that only the class can read."""
    if hasattr(factory, "describe_file"):
        described: PolicyFile = factory.describe_file(path)
        return described
    return None if hasattr(factory, "read_file") else PolicyFile.load(path)


def _read_file(name: str, factory: Any, file_name: str, env: SchedulingEnv) -> dict[str, Any]:
    """Options from a file, by the class's own way to read it when it has one."""
    path = policy_path(name, file_name)
    if hasattr(factory, "read_file"):
        return dict(factory.read_file(path, env))
    file = PolicyFile.load(path)
    file.check(name, env)
    return dict(file.options)


def _build(name: str, factory: Any, env: SchedulingEnv, options: dict[str, Any]) -> Any:
    if not callable(factory):
        raise TypeError(
            f"{name} is a {type(factory).__name__}; name a class that is built as Class(env, **options)"
        )
    signature = inspect.signature(factory)
    try:
        signature.bind(env, **options)
    except TypeError as error:
        known = ", ".join(list(signature.parameters)[1:]) or "none"
        raise ValueError(f"policy {name!r}: {error}; its options are: {known}") from None
    return factory(env, **options)


def _find(name: str) -> Any:
    """The class behind a built-in name or behind ``module:Class``."""
    try:
        return import_object(BUILT_IN.get(name, name))
    except NoSuchModuleError as error:
        raise _unknown(name) from error


def _unknown(name: str) -> ValueError:
    stem = name.partition(":")[0]
    near = difflib.get_close_matches(stem, policy_names(), n=3)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return ValueError(
        f"no policy {stem!r}{hint}; built in are {', '.join(policy_names())}; for your own, write "
        "package.module:Class with a module that can be imported from here"
    )
