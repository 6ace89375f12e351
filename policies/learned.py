"""A trained network as a policy: an actor's preferences, or action values."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from policies.base import Memory, SchedulingEnv
from policies.network import Network
from policies.network_policy import NetworkPolicy

Kind = Literal["logits", "q"]


class Learned(NetworkPolicy):
    """The tree to which a trained network gives most: ``learned@file.npz``.

    Args:
        env: The environment to schedule.
        network: F observations to K outputs, one for each tree.
        kind: What the outputs are: ``"logits"`` of a distribution over the trees, from which
            ``predict(deterministic=False)`` draws, or values ``"q"``, of which it takes the best in any case.
        file: Where it was read from; it only shows in `spec`.

    Raises:
        ValueError: When the network does not fit, or the kind is unknown.
    """

    name = "learned"

    def __init__(self, env: SchedulingEnv, network: Network, kind: Kind = "logits", file: str = "") -> None:
        super().__init__(env, network, file)
        if kind not in get_args(Kind):
            raise ValueError(f"policy 'learned': kind={kind!r} is none of {', '.join(get_args(Kind))}")
        self.kind, self.options = kind, {"kind": kind}
        self._random = np.random.default_rng(0)

    def act(
        self, observations: npt.NDArray[np.float32], memory: Memory
    ) -> tuple[npt.NDArray[np.integer[Any]], Memory]:
        """The tree with the greatest output, the first of equals."""
        return self.network(observations).argmax(axis=1), memory

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Memory | None = None,
        episode_start: npt.NDArray[Any] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.int64], Memory | None]:
        """Choose actions as the base class does; with logits and ``deterministic=False``, draw them."""
        actions, state = super().predict(observation, state, episode_start)
        if deterministic or self.kind == "q":
            return actions, state
        logits = self.network(np.atleast_2d(observation))
        # The greatest logit + Gumbel noise is a draw from their softmax.
        drawn = (logits + self._random.gumbel(size=logits.shape)).argmax(axis=1)
        return drawn.reshape(actions.shape), state
