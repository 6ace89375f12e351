import numpy as np
import pytest

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.replay.vector_env import ReplayVectorEnv
from tests.recordings import BANK, COSTS, accepted, random_recording, saved_settings, seconds
from train.supervision import Supervision, cost_targets, token_targets


@pytest.fixture(scope="module")
def tables():
    recording = random_recording(np.random.default_rng(5), texts=4, longest=20, cap=20)
    return ReplayTables.build(recording, load_costs(COSTS), BANK)


@pytest.fixture(scope="module")
def rows(tables):
    return np.flatnonzero(tables.stops == 0)


def test_tokens_of_every_tree(tables, rows):
    ranks = tables.recording.ranks
    expected = [[1 + accepted(tree, ranks[row]) for tree in BANK] for row in rows]
    assert token_targets(tables, rows).tolist() == expected


def test_seconds_lost_to_the_best_tree(tables, rows):
    oracle = solve(tables)
    for behind in (oracle.values, oracle.static_values[2]):
        lost = cost_targets(tables, behind, rows)
        for own, row in zip(lost, rows, strict=True):
            totals = [
                seconds(tree, tables.contexts[row]) + behind[row + tables.emitted[k, row]]
                for k, tree in enumerate(BANK)
            ]
            np.testing.assert_allclose(own, np.array(totals) - min(totals), atol=1e-12)
    assert (cost_targets(tables, oracle.values, rows).argmin(axis=1) == oracle.actions[rows]).all()


def test_a_cache_that_would_cut_texts_is_refused(tmp_path):
    settings = saved_settings(
        tmp_path, random_recording(np.random.default_rng(5), texts=4, longest=20, cap=20)
    )
    envs = ReplayVectorEnv(4, **settings, capacity=16)
    with pytest.raises(ValueError, match=r"do not fit into 16 KV rows.*raise the capacity"):
        Supervision(None, envs, None)
