"""What every scheduler is: Stable-Baselines3's predictor protocol, and a base class that speaks it."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from entmtp_env.features import GROUPS
from entmtp_env.trees.bank import TopologyBank

Memory = tuple[npt.NDArray[Any], ...]
"""Controller memory: arrays whose first axis is the environment."""

SchedulingEnv = gymnasium.Env[Any, Any]
"""An environment whose ``unwrapped`` has a ``bank`` and ``feature_names``."""


def env_probe(env: SchedulingEnv) -> str | None:
    """What an environment drafts before each decision; ``None`` where there is no such choice."""
    return getattr(getattr(env.unwrapped, "feature_set", None), "probe", None)


class Predictor(Protocol):
    """Anything with ``predict``: the policies here, your own, and every Stable-Baselines3 model."""

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], Memory | None]:
        """Choose actions for one observation ``(F,)`` or a batch ``(N, F)``."""
        ...


class SchedulerPolicy(ABC):
    """Base of the schedulers: write `act`, and `initial_memory` when the controller remembers something.

    A policy object holds settings only. What it remembers of an episode travels through ``state``, so one
    object serves any number of interleaved episodes.

    Args:
        env: The environment to schedule; its bank and feature names are read, it is not kept.

    Raises:
        ValueError: When it schedules a bank, as it does without an ``env_id`` of its own, and the environment
            has none.

    Attributes:
        name: The policy's name in specs and tables; ``module:Class`` unless the class sets its own.
        argument: The option that a spec's bare argument fills, as ``tree`` in ``static:hydra-default``.
        env_id: Gymnasium id of the environment that it schedules live unless told otherwise. A class that has
            its own checks for itself that the environment is of that kind.
        observes: Whether it reads observations. An evaluation does not charge one that does not for their
            making; one that does pays for them.
        bank: The trees; action ``k`` is ``bank[k]``.
        feature_names: Name of each column of an observation.
        probe: What is drafted before each decision, see `env_probe`; ``None`` when it does not matter.
        options: The options in force, defaults included; a subclass with options sets it.

    Example:
        >>> class Cautious(SchedulerPolicy):
        ...     def __init__(self, env, floor=0.5):
        ...         super().__init__(env)
        ...         self.options = {"floor": floor}
        ...         self.floor, self.top1 = floor, self.feature("base_top1")
        ...
        ...     def act(self, observations, memory):
        ...         return np.where(observations[:, self.top1] > self.floor, 1, 0), memory
    """

    name: ClassVar[str]
    argument: ClassVar[str | None] = None
    env_id: ClassVar[str] = "EntMTP/Live-v0"
    observes: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = f"{cls.__module__}:{cls.__qualname__}"

    def __init__(self, env: SchedulingEnv) -> None:
        unwrapped: Any = env.unwrapped
        self.bank = self._bank_of(env)
        self.feature_names: tuple[str, ...] = tuple(unwrapped.feature_names)
        self.probe = env_probe(env)
        features = getattr(unwrapped, "feature_set", None)
        self._observed: str | None = getattr(features, "setting", None)
        # Those of a draft's stages belong to no group: they are always there.
        in_groups = getattr(getattr(features, "base", features), "features", ())
        self._group_of = {own.name: own.group for own in in_groups}
        self._asked: set[str] = set()
        self.options: Mapping[str, Any] = {}

    @property
    def reads(self) -> str | None:
        """Groups of the features that it asked for by :meth:`feature`, separated by commas.

        Its file names them, and an evaluation observes no others for it: making them takes time. ``None``
        when there are none or the environment does not say.
        """
        asked = {self._group_of.get(name) for name in self._asked}
        return ",".join(group for group in GROUPS if group in asked) or None

    @classmethod
    def _bank_of(cls, env: SchedulingEnv) -> TopologyBank:
        unwrapped: Any = env.unwrapped
        bank: TopologyBank = unwrapped.bank
        if cls.env_id == SchedulerPolicy.env_id and not isinstance(bank, TopologyBank):
            raise ValueError(
                f"policy {cls.name!r} schedules a bank of trees, which {type(unwrapped).__name__} does not "
                f"have; run it in {cls.env_id} or its replay"
            )
        return bank

    def initial_memory(self, n: int) -> Memory:
        """Memory of ``n`` environments at the start of an episode, first axis of each array ``n``."""
        return ()

    @abstractmethod
    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """Choose one tree per environment.

        Args:
            observations: Shape ``(N, F)``.
            memory: What the last call returned, or `initial_memory` where an episode starts. Return new
                arrays instead of changing these: the caller may still hold them.

        Returns:
            Actions, shape ``(N,)``, and the memory for the next call.
        """

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], Memory | None]:
        """Choose actions, as Stable-Baselines3's predictors do.

        Args:
            observation: Shape ``(F,)`` or ``(N, F)``.
            state: What the last call returned; ``None`` starts every episode afresh.
            episode_start: Shape ``(N,)``, ``(1,)`` for one observation; true where memory is reset.
            deterministic: Part of the protocol; the choice does not depend on it.

        Returns:
            Actions, int64, shape ``()`` or ``(N,)``, and the next state (``None`` without memory).

        Raises:
            ValueError: When the observation, the state, or what `act` returned does not fit.
        """
        observations = observation[np.newaxis] if observation.ndim == 1 else observation
        n = len(observations)
        if observations.shape != (n, len(self.feature_names)):
            raise ValueError(
                f"policy {self.name!r} was built for observations of {len(self.feature_names)} features, "
                f"got shape {observation.shape}; build it with the environment it runs in"
            )
        actions, memory = self._checked(self.act(observations, self._resume(n, state, episode_start)), n)
        return (actions if observations is observation else actions[0, ...]), memory or None

    def _checked(self, decision: Any, n: int) -> tuple[npt.NDArray[np.int64], Memory]:
        """What `act` returned, once it is what it must be; at every step, hence without a comprehension."""
        fits = isinstance(decision, tuple) and len(decision) == 2 and isinstance(decision[1], tuple)
        if fits:
            actions, memory = np.asarray(decision[0]), decision[1]
            fits = actions.dtype.kind in "iu" and actions.shape == (n,)
            for kept in memory:
                fits = fits and isinstance(kept, np.ndarray) and kept.shape[:1] == (n,)
        if not fits:
            raise ValueError(
                f"policy {self.name!r}: act must return (actions, memory), integers of shape ({n},) and a "
                f"tuple of arrays whose first axis is {n}, such as (array,), or () to remember nothing; it "
                f"returned {_outline(decision)}"
            )
        return actions.astype(np.int64, copy=False), memory

    def _resume(self, n: int, state: Memory | None, episode_start: npt.NDArray[Any] | None) -> Memory:
        if state is None:
            return self.initial_memory(n)
        if any(len(kept) != n for kept in state):
            raise ValueError(
                f"state of {len(state[0])} environments with {n} observations; pass state=None to start"
            )
        if episode_start is None or not np.asarray(episode_start).any():
            return state
        starts = np.asarray(episode_start, dtype=np.bool_)
        return tuple(
            np.where(starts.reshape(-1, *(1,) * (kept.ndim - 1)), fresh, kept)
            for fresh, kept in zip(self.initial_memory(n), state, strict=True)
        )

    def feature(self, name: str) -> int:
        """Column of a feature; ask for all that are read.

        Raises:
            ValueError: When the environment does not observe it, as when its group is switched off.
        """
        if name not in self.feature_names:
            near = difflib.get_close_matches(str(name), self.feature_names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"policy {self.name!r} reads the feature {name!r}, which this environment does not "
                f"observe{hint}; switch its group on with gymnasium.make(..., features=...), or use one of "
                f"{', '.join(self.feature_names)}"
            )
        self._asked.add(name)
        return self.feature_names.index(name)

    @property
    def spec(self) -> str:
        """The spec with every option in force; `make_policy` builds the same policy from it."""
        options = ",".join(f"{key}={_written(value)}" for key, value in self.options.items())
        separator = "," if ":" in self.name else ":"
        return f"{self.name}{separator}{options}" if options else self.name


def _outline(value: Any) -> str:
    """Types and shapes of what is too long to show."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_outline, value))}{',' * (len(value) == 1)})"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype} array of shape {value.shape}" if value.ndim else f"{value.dtype} {value}"
    return f"{type(value).__name__} {value!r:.40}"


def _written(value: Any) -> str:
    return "|".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
