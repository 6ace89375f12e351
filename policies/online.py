"""Schedulers that learn while they decode: how they are paid, and what they keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulerPolicy, SchedulingEnv
from policies.policy_file import PolicyFile, feature_fingerprint

Floats = npt.NDArray[np.float64]


class OnlinePolicy(SchedulerPolicy):
    """Base of the online learners: each step pays for the tree that it was made with.

    The goal is throughput, Σ tokens / Σ seconds. That is not the mean of the steps' rates, which favours
    short steps: by renewal-reward theory it is the ratio of mean tokens to mean seconds, and by Dinkelbach
    (1967, Management Science 13) its maximum is the ρ at which the best choice of tokens − ρ · seconds is
    worth 0. So that is the payoff of a step, with the throughput so far as ρ. Tokens and seconds are summed
    apart and weighed at each decision, so old payoffs follow ρ, and a prior of 0 for what is unknown means:
    as good as the decoding so far. What a tree does to the decisions after it is not in its payoff.

    A step's tokens and seconds are read from ``env.unwrapped.last_step``, hence it learns only in the
    environment that it was built with, a single one or a
    :class:`~entmtp_env.replay.vector_env.ReplayVectorEnv`, all of whose steps it learns from. The object
    keeps what it has learned, from text to text; ``state`` keeps which trees wait for their payoffs, so the
    first decision of a text pays for none, and the last step of a text, after which a single environment asks
    nothing more, is not learned from. It explores and learns under ``deterministic=True``, too; with
    ``learn=false`` it does neither, and its choice depends on the observations alone.

    Args:
        env: The environment to schedule; it is kept.
        learn: Whether to go on learning and exploring.
        features: The features of a context; ``("all",)`` is every one.

    Attributes:
        learned: What was learned, arrays that change in place. ``moments`` ``(K, 1 + features, 2)`` has Σ
            context × (tokens, seconds) of each tree; a context is 1, then the features.

    Raises:
        ValueError: When ``learn`` is not true or false, the environment does not tell its last step, or a
            feature is missing.
    """

    def __init__(self, env: SchedulingEnv, learn: bool, features: Sequence[str]) -> None:
        super().__init__(env)
        self._env: Any = env.unwrapped
        if not isinstance(learn, bool):
            raise ValueError(f"option learn={learn!r} must be true or false")
        if learn and not hasattr(self._env, "last_step"):
            raise ValueError(
                f"policy {self.name!r} learns from env.unwrapped.last_step, (tokens, seconds), which "
                f"{type(self._env).__name__} does not have; add it, or write learn=false"
            )
        self._learn = learn
        used = self.feature_names if tuple(features) == ("all",) else features
        self._columns = [self.feature(name) for name in used]
        self.learned: dict[str, Floats] = {"moments": np.zeros((len(self.bank), 1 + len(used), 2))}

    @property
    def throughput(self) -> float:
        """ρ, the tokens per second of all steps learned from; 0 before the first."""
        tokens, seconds = self.learned["moments"][:, 0].sum(axis=0).tolist()
        return tokens / seconds if seconds else 0.0

    def payoffs(self) -> Floats:
        """Σ context × payoff of each tree, at the throughput so far, ``(K, 1 + features)``."""
        moments = self.learned["moments"]
        return moments[..., 0] - self.throughput * moments[..., 1]

    @abstractmethod
    def choose(self, contexts: Floats) -> npt.NDArray[np.integer[Any]]:
        """Trees for contexts ``(N, 1 + features)``, as `act`; exploring unless ``learn`` is off."""

    @abstractmethod
    def count(self, tree: int, context: Floats) -> None:
        """Note that a tree was tried in a context, ``(1 + features,)``."""

    def initial_memory(self, n: int) -> Memory:
        """Trees that wait for their payoff, ``(n,)``, −1 for none, and contexts, ``(n, 1 + features)``."""
        return (np.full(n, -1), np.zeros((n, 1 + len(self._columns)))) if self._learn else ()

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """Learn from the step before, then choose.

        Raises:
            ValueError: When it learns and the observations are not those of its environment.
        """
        contexts = np.ones((len(observations), 1 + len(self._columns)))
        contexts[:, 1:] = observations[:, self._columns]
        if not self._learn:
            return self.choose(contexts), memory
        paid = np.array(self._env.last_step, dtype=np.float64).reshape(2, -1).T
        if len(paid) != len(observations):
            raise ValueError(
                f"policy {self.name!r} got {len(observations)} observations, its environment has "
                f"{len(paid)} texts; run it only in the environment that it was built with"
            )
        trees, before = memory
        for i in np.flatnonzero((trees >= 0) & (paid[:, 1] > 0)):
            self.learned["moments"][trees[i]] += before[i, :, np.newaxis] * paid[i]
            self.count(trees[i], before[i])
        chosen = self.choose(contexts)
        return chosen, (chosen, contexts)

    def save(self, path: str | Path, calibration: Mapping[str, Any] | None = None) -> None:
        """Write a policy file with what was learned; ``name@path`` goes on from there.

        The file refuses another bank or probe and other features, but not another machine, whose steps take
        other seconds than those that were learned.

        Args:
            path: The file, JSON.
            calibration: How it was learned; free.
        """
        learned = {key: array.tolist() for key, array in self.learned.items()}
        replace(
            PolicyFile.of(self, calibration),
            options={**self.options, "learned": learned},
            feature_fingerprint=feature_fingerprint(self.feature_names),
        ).save(path)

    def _restore(self, learned: Mapping[str, Any] | None) -> None:
        if learned is None:
            return
        if not isinstance(learned, Mapping) or learned.keys() != self.learned.keys():
            raise ValueError(f"policy {self.name!r}: learned must have {', '.join(self.learned)}, as saved")
        for key, array in self.learned.items():
            try:
                values = np.array(learned[key], dtype=np.float64)
            except (TypeError, ValueError):
                values = np.zeros(0)
            if values.shape != array.shape or not np.isfinite(values).all():
                raise ValueError(f"policy {self.name!r}: learned {key} must be {array.shape} finite numbers")
            array[:] = values
