from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from tests.fake_env import FEATURES, FakeEnv


@pytest.fixture(scope="session")
def fake_env() -> Callable[..., FakeEnv]:
    return FakeEnv


@pytest.fixture(scope="session")
def env() -> FakeEnv:
    return FakeEnv()


@pytest.fixture(scope="session")
def observe(env):
    """Rows of observations, ``(n, F)``, from columns given by name; the others are 0."""

    def build(**columns):
        rows = np.zeros((len(next(iter(columns.values()))), len(FEATURES)), dtype=np.float32)
        for name, values in columns.items():
            rows[:, FEATURES.index(name)] = values
        return rows

    return build


@pytest.fixture(scope="session")
def run():
    """Actions of a policy over one episode's observations, ``(T, F)``."""

    def play(policy, observations):
        state, actions = None, []
        for step, observation in enumerate(observations):
            action, state = policy.predict(observation, state=state, episode_start=np.array([step == 0]))
            actions.append(int(action))
        return actions

    return play


@pytest.fixture(scope="session")
def bare_env():
    """An environment that is only looked at: a bank and feature names."""

    def build(bank, features=FEATURES):
        env = SimpleNamespace(bank=bank, feature_names=features)
        env.unwrapped = env
        return env

    return build
