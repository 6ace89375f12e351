import numpy as np
import pytest

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.tables import ReplayTables
from tests.recordings import BANK, COSTS, accepted, random_recording, seconds
from train.supervision import cost_targets, token_targets


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
