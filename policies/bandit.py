"""A contextual bandit over the bank: it learns which tree pays in which situation, while it decodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.base import SchedulingEnv
from policies.online import Floats, OnlinePolicy
from policies.options import names, number, whole_number


class Bandit(OnlinePolicy):
    """Thompson sampling with one linear model for each tree (Agrawal and Goyal 2013, arXiv 1209.3352).

    A tree's expected tokens and seconds are linear in the features, with a ridge prior;
    :class:`~policies.online.OnlinePolicy` says how they make a payoff. With A = ridge · I + Σ x xᵀ and
    b = Σ x · payoff over the tree's steps, its payoff in context x is drawn from
    N(bᵀ A⁻¹ x, alpha² · xᵀ A⁻¹ x), and the tree with the highest draw is taken. Models of different trees
    being independent, that is the same as to draw the models. Exploration fades as they become certain, and
    in lock-step the environments explore different trees. A⁻¹ is kept by the formula of Sherman and Morrison.

    Args:
        env: The environment to schedule; it is kept.
        alpha: Exploration, in tokens: the noise that a payoff is taken to have.
        ridge: Prior precision of the weights of the features, most of which are within [0, 1].
        features: The features of the context, ``a|b|c`` in a spec; ``all`` by default.
        seed: Seed of the draws, a whole number >= 0.
        learn: Whether to go on learning; if not, the tree with the highest mean payoff is taken.
        learned: What an earlier bandit learned, from a file that `save` wrote.

    Raises:
        ValueError: When a feature is missing, a number is out of range, the environment does not tell its
            last step, or what was learned does not fit.
    """

    name = "bandit"

    def __init__(
        self,
        env: SchedulingEnv,
        alpha: float = 0.1,
        ridge: float = 1.0,
        features: str | Sequence[str] = "all",
        seed: int = 0,
        learn: bool = True,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        context = names("features", features)
        super().__init__(env, learn, context)
        self._alpha, ridge = number("alpha", alpha), number("ridge", ridge)
        if self._alpha < 0 or ridge <= 0:
            raise ValueError(f"bandit: alpha={self._alpha} must be >= 0 and ridge={ridge} > 0")
        seed = whole_number("seed", seed, minimum=0)
        self._generator = np.random.default_rng(seed)
        width = 1 + len(self._columns)
        self.learned["inverse"] = np.tile(np.eye(width) / ridge, (len(self.bank), 1, 1))
        self._restore(learned)
        try:
            np.linalg.cholesky(self.learned["inverse"])
        except np.linalg.LinAlgError:
            raise ValueError("policy 'bandit': learned inverse must be positive definite, as saved") from None
        self.options = {
            "alpha": self._alpha,
            "ridge": ridge,
            "features": context,
            "seed": seed,
            "learn": learn,
        }

    def count(self, tree: int, context: Floats) -> None:
        """Add x xᵀ to the tree's A, in its inverse."""
        inverse = self.learned["inverse"][tree]
        gain = inverse @ context
        gain /= math.sqrt(1 + context @ gain)
        inverse -= gain[:, np.newaxis] * gain

    def choose(self, contexts: Floats) -> npt.NDArray[np.int64]:
        """The trees with the highest payoffs drawn; with the highest means, unless it learns."""
        inverse = self.learned["inverse"]
        trees, width, _ = inverse.shape
        # A⁻¹x of every tree in one product, (K, 1 + features, N).
        solved = (inverse.reshape(-1, width) @ contexts.T).reshape(trees, width, -1)
        payoffs: Floats = (self.payoffs()[:, np.newaxis] @ solved)[:, 0]
        if self._learn:
            variances = (contexts.T * solved).sum(axis=1)
            # Rounding may leave a variance of nearly 0 below it.
            deviations = self._alpha * np.sqrt(np.maximum(variances, 0))
            payoffs += deviations * self._generator.standard_normal(payoffs.shape)
        return payoffs.argmax(axis=0)
