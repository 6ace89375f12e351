"""A network trained with Stable-Baselines3 as a policy that acts in NumPy."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from entmtp_env.replay.lockstep import LockstepReplay
from policies.base import SchedulingEnv
from policies.learned import Kind, Learned
from policies.network import Floats
from policies.staged_learned import StagedLearned
from train.numpy_network import to_numpy


def to_learned(
    model: BaseAlgorithm, normalization: VecNormalize | None, env: SchedulingEnv | LockstepReplay
) -> Learned | StagedLearned:
    """Copy the deterministic policy of a DQN, or of an actor-critic with an ``MlpPolicy``.

    Args:
        model: The model.
        normalization: What normalised its observations, frozen as it is now; ``None`` when nothing did.
        env: Environment of the same bank, or stages, and features.

    Raises:
        ValueError: When the network has other activations than tanh or ReLU, or does not fit the environment.
    """
    policy: Any = model.policy
    kind: Kind
    if isinstance(model, DQN):
        kind, modules = "q", [*policy.q_net.q_net]
    else:
        kind, modules = "logits", [*policy.mlp_extractor.policy_net, policy.action_net]
    network = to_numpy(modules, *_normalization(normalization, model.observation_space.shape))
    # Policies read the bank and the feature names, and a vector environment has both.
    single = cast(SchedulingEnv, env)
    if isinstance(model, MaskablePPO):
        return StagedLearned(single, network)
    return Learned(single, network, kind)


def _normalization(
    normalization: VecNormalize | None, shape: tuple[int, ...]
) -> tuple[Floats, Floats, float]:
    """What is subtracted from the features, what they are then divided by, and the bound of the result."""
    if normalization is None or not normalization.norm_obs:
        return np.zeros(shape, np.float32), np.ones(shape, np.float32), math.inf
    statistics: Any = normalization.obs_rms
    return statistics.mean, np.sqrt(statistics.var + normalization.epsilon), normalization.clip_obs
