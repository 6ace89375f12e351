import gymnasium
import numpy as np
import pytest

import entmtp_env  # noqa: F401
from policies import make_policy
from policies.lookup import PromptLookup


def test_it_always_drafts_all_that_it_may(tiny_files):
    env = gymnasium.make(PromptLookup.env_id, **tiny_files.kwargs, max_draft=5)
    policy = make_policy("prompt-lookup", env)
    observations = np.zeros((3, len(env.unwrapped.feature_names)), dtype=np.float32)
    assert policy.predict(observations)[0].tolist() == [5] * 3
    assert policy.spec == "prompt-lookup"


def test_a_bank_of_trees_is_not_for_it(env):
    with pytest.raises(ValueError, match=r"needs an environment that looks up, as EntMTP/PromptLookup-v0"):
        make_policy("prompt-lookup", env)
