"""Settings of the reinforcement learning algorithms, named as in Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PPOSettings:
    """Proximal policy optimisation (arXiv 1707.06347).

    Attributes:
        learning_rate: Of Adam, at the start; it falls linearly to 0.
        n_steps: Decode steps of each environment between updates.
        batch_size: Steps in a minibatch.
        n_epochs: Passes over the steps of an update.
        gamma: Discount of a step; a tree acts on the next steps at most, and longer horizons learn worse.
        gae_lambda: Of generalised advantage estimation.
        clip_range: How far a step's probability may move in an update.
        ent_coef: Weight of the entropy.
        vf_coef: Weight of the value loss.
        max_grad_norm: Largest gradient norm.
    """

    learning_rate: float = 1e-3
    n_steps: int = 32
    batch_size: int = 1024
    n_epochs: int = 4
    gamma: float = 0.5
    gae_lambda: float = 0.5
    clip_range: float = 0.2
    ent_coef: float = 0.003
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5


@dataclass(frozen=True)
class DQNSettings:
    """Deep Q-learning (Nature 518, 2015).

    Attributes:
        learning_rate: Of Adam, at the start; it falls linearly to 0.
        buffer_size: Steps that are remembered.
        learning_starts: Steps, by random trees, before the first update.
        batch_size: Steps in an update.
        train_freq: Steps of each environment between updates.
        gradient_steps: Updates at a time.
        target_update_interval: Steps between copies to the target network.
        exploration_fraction: Share of the training over which exploration falls to its end.
        exploration_final_eps: Share of random trees at the end.
        gamma: Discount of a step; values of a longer horizon are overestimated and learned worse.
        max_grad_norm: Largest gradient norm.
    """

    learning_rate: float = 1e-3
    buffer_size: int = 200_000
    learning_starts: int = 10_000
    batch_size: int = 1024
    train_freq: int = 1
    gradient_steps: int = 1
    target_update_interval: int = 10_000
    exploration_fraction: float = 0.3
    exploration_final_eps: float = 0.05
    gamma: float = 0.5
    max_grad_norm: float = 10.0


@dataclass(frozen=True)
class A2CSettings:
    """Advantage actor-critic, the synchronous form of arXiv 1602.01783.

    Attributes:
        learning_rate: Of RMSprop, at the start; it falls linearly to 0.
        n_steps: Decode steps of each environment between updates.
        gamma: Discount of a step.
        gae_lambda: Of generalised advantage estimation; 1 = plain returns.
        ent_coef: Weight of the entropy.
        vf_coef: Weight of the value loss.
        max_grad_norm: Largest gradient norm.
    """

    learning_rate: float = 2e-3
    n_steps: int = 8
    gamma: float = 0.9
    gae_lambda: float = 0.9
    ent_coef: float = 0.003
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
