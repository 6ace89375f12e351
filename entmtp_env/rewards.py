"""Named per-step rewards.

Per-step tokens per second does not sum to throughput (three 1-token steps can out-score one 4-token step), so
it is not the default. Rewards count decode steps only, never the prefill.
"""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from entmtp_env.import_path import import_object
from entmtp_env.spec import Spec, parse_spec

Number = float | npt.NDArray[Any]
"""A scalar, or one value per environment."""


_TINY = float(np.finfo(np.float64).tiny)


class Reward(Protocol):
    """A pure function of one decode step and of the episode before it."""

    def __call__(
        self, tokens: Number, seconds: Number, total_tokens_before: Number, total_seconds_before: Number, /
    ) -> Any:
        """Price one step of each environment.

        Args:
            tokens: Tokens emitted in the step.
            seconds: Duration of the step, > 0.
            total_tokens_before: Tokens of the episode before the step.
            total_seconds_before: Seconds of the episode before the step; 0 at the first step.

        Returns:
            The reward: a float for scalars, an array for arrays of one shape.
        """
        ...


def tokens_per_second(
    tokens: Number, seconds: Number, total_tokens_before: Number, total_seconds_before: Number
) -> Any:
    """T_t - T_{t-1} in tok/s, with T_t = tokens so far / seconds so far and T_0 = 0.

    The episode sum is exactly the episode's tokens per second. Arguments as in :class:`Reward`.
    """
    now = (total_tokens_before + tokens) / (total_seconds_before + seconds)
    # Before the first step both totals are 0, and 0 / tiny is the wanted 0.
    return now - total_tokens_before / (total_seconds_before + _TINY)


def throughput_advantage(
    tokens: Number,
    seconds: Number,
    total_tokens_before: Number,
    total_seconds_before: Number,
    *,
    reference: float,
) -> Any:
    """Tokens - reference * seconds: tokens won over a decoder of ``reference`` tok/s; the one to train on.

    Other arguments as in :class:`Reward`.
    """
    return tokens - reference * seconds


def step_tokens_per_second(
    tokens: Number, seconds: Number, total_tokens_before: Number, total_seconds_before: Number
) -> Any:
    """Tokens / seconds of the step. Its sum is *not* throughput and rewards short steps; kept for ablation.

    Arguments as in :class:`Reward`.
    """
    return tokens / seconds


_REWARDS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (tokens_per_second, throughput_advantage, step_tokens_per_second)
}


def make_reward(spec: str = "tokens_per_second") -> Reward:
    """Build a reward from its name or spec.

    Args:
        spec: ``tokens_per_second``, ``throughput_advantage:reference=45`` (tok/s),
            ``step_tokens_per_second``, or ``package.module:function:key=value,...`` for any function that is
            called as a :class:`Reward` is, options as keywords; modules in the current directory are found.

    Returns:
        The reward; it can be pickled.

    Raises:
        ValueError: When the name is unknown, the reference is missing or not a positive number, the spec has
            parts that the reward does not take, or what it names is no such function.
    """
    parsed = parse_spec(spec)
    if parsed.name not in _REWARDS:
        return _own_reward(spec, parsed)
    expected = {"reference"} if parsed.name == "throughput_advantage" else set()
    if parsed.argument or parsed.file or set(parsed.options) - expected:
        takes = "only the option 'reference'" if expected else "no options"
        raise ValueError(f"reward {spec!r}: {parsed.name} takes {takes}; write it without the rest")
    if not expected:
        return _REWARDS[parsed.name]
    reference = parsed.options.get("reference")
    if isinstance(reference, str | bool) or reference is None or not 0 < reference < math.inf:
        raise ValueError(
            f"reward {spec!r} needs the reference throughput in tok/s, a positive number; "
            "write throughput_advantage:reference=45"
        )
    return partial(throughput_advantage, reference=float(reference))


def _own_reward(spec: str, parsed: Spec) -> Reward:
    """A function from outside, with its options."""
    if not parsed.argument or parsed.file:
        raise ValueError(
            f"unknown reward {spec!r}; choose one of {', '.join(_REWARDS)}, or name a function of your own: "
            "package.module:function:key=value,..."
        )
    try:
        function = import_object(f"{parsed.name}:{parsed.argument}")
    except ValueError as error:
        raise ValueError(f"reward {spec!r}: {error}") from error
    try:
        inspect.signature(function).bind(1, 1.0, 0, 0.0, **parsed.options)
        reward = partial(function, **parsed.options)
        pickle.dumps(reward)
    except (TypeError, ValueError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(
            f"reward {spec!r}: {error}; write a top-level function f(tokens, seconds, total_tokens_before, "
            "total_seconds_before, *, key=...) of numbers or of arrays of one shape, options being keywords"
        ) from error
    return reward
