import copy

import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from entmtp_env.decoding.stages import DEEPER
from entmtp_env.replay.staged_oracle import solve_staged
from tests.staged import measured_costs, staged_settings


def make(folder, **settings):
    settings = {"texts": 4} | settings
    settings = staged_settings(folder, **settings) | {"costs": measured_costs(folder)}
    return gymnasium.make("EntMTP/StagedReplay-v0", **settings).unwrapped


def least(env, info, known):
    """Least seconds to the end of the text, by trying every decision in the environment itself."""
    place = env.place[1], env._depth
    if place not in known:
        options = []
        for action in info["action_mask"].nonzero()[0]:
            twin = copy.deepcopy(env)
            *_, terminated, truncated, after = twin.step(action)
            rest = 0.0 if terminated or truncated else least(twin, after, known)
            options.append(after["seconds"] + rest)
        known[place] = min(options)
    return known[place]


@pytest.mark.parametrize("seed", range(3))
def test_no_decisions_are_faster(tmp_path, seed):
    env = make(tmp_path, seed=seed)
    oracle = solve_staged(env)
    for number, text in enumerate(env.prompts):
        _, info = env.reset(seed=0, options={"prompt_id": text.prompt_id})
        assert oracle.seconds[number] == pytest.approx(least(env, info, {}))


def test_the_schedule_takes_the_time_that_is_promised(tmp_path):
    env = make(tmp_path, seed=3, texts=12, longest=40, cap=40)
    oracle, used = solve_staged(env), set()
    for number, text in enumerate(env.prompts):
        env.reset(options={"prompt_id": text.prompt_id})
        schedule = oracle.schedule(number)
        for action in schedule:
            *_, terminated, truncated, info = env.step(action)
        assert terminated or truncated
        assert info["total_seconds"] == pytest.approx(oracle.seconds[number])
        used |= set(schedule)
    assert len(used) > 3
    assert np.all(oracle.values[env.tables.stops > 0] == 0)


def test_static_values_are_those_of_fixed_depths_and_budgets(tmp_path):
    env = make(tmp_path, seed=4, texts=6, longest=20, cap=20)
    oracle, totals = solve_staged(env), {}
    for depth, budget in np.argwhere(env.stages.masks[:, 1:]).tolist():
        seconds = []
        for text in env.prompts:
            env.reset(options={"prompt_id": text.prompt_id})
            done = False
            while not done:
                for action in [DEEPER] * depth + [1 + budget]:
                    *_, terminated, truncated, info = env.step(action)
                done = terminated or truncated
            seconds.append(info["total_seconds"])
        assert oracle.static_seconds(depth, budget) == pytest.approx(seconds)
        totals[depth, budget] = sum(seconds)
    assert oracle.best_static == min(totals, key=totals.get)
    assert np.isinf(oracle.static_values[:, ~env.stages.masks[:, 1:]]).all()
