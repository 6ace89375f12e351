import numpy as np
import pytest
from scipy import stats

from policies import make_policy, run_episode
from policies.random import Random


def actions(env, policy, prompt):
    return [step.action for step in run_episode(env, policy, prompt, seed=0).steps]


def test_the_same_seed_and_prompt_repeat(env):
    assert actions(env, Random(env, seed=3), "a") == actions(env, Random(env, seed=3), "a")


def test_other_seeds_and_prompts_differ(env):
    policy = Random(env, seed=3)
    assert actions(env, policy, "a") != actions(env, policy, "b")
    assert actions(env, policy, "a") != actions(env, Random(env, seed=4), "a")


def test_the_later_observations_do_not_matter(env, run):
    policy, rng = Random(env), np.random.default_rng(0)
    one, two = rng.random((2, 40, len(env.feature_names)), dtype=np.float32)
    two[0] = one[0]
    assert run(policy, one) == run(policy, two)


def test_uniform_over_prompts_and_over_steps(env, run):
    policy, rng, trees = Random(env), np.random.default_rng(0), len(env.bank)
    first, _ = policy.predict(rng.random((4000, len(env.feature_names)), dtype=np.float32))
    along = np.array(run(policy, rng.random((4000, len(env.feature_names)), dtype=np.float32)))
    pairs = along[:-1] * trees + along[1:]
    for sample, size in ((first, trees), (along, trees), (pairs, trees**2)):
        assert stats.chisquare(np.bincount(sample, minlength=size)).pvalue > 1e-4


@pytest.mark.parametrize("seed", ["-1", "0.5", "x"])
def test_a_bad_seed_is_refused(env, seed):
    with pytest.raises(ValueError, match="option seed"):
        make_policy(f"random:seed={seed}", env)
