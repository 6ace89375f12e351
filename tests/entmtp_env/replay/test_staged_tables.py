import dataclasses

import numpy as np
import pytest

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.ranks import NO_TOKEN
from entmtp_env.replay.staged_tables import StagedTables, fit_stages
from entmtp_env.staged_features import budget_features, depth_features
from tests.recordings import accepted, random_recording
from tests.staged import SHAPE, STAGES, random_drafts


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    recording = random_recording(rng, texts=20)
    return StagedTables(recording, random_drafts(rng, recording), STAGES)


def cut_off(recording):
    texts = tuple(dataclasses.replace(text, finish_reason="length") for text in recording.texts)
    return dataclasses.replace(recording, texts=texts)


def test_a_row_tells_what_the_decoder_would_have_known(tables):
    """Row by row, against the node table that decodes and the trees that it builds."""
    table, seen = NodeTable(STAGES), set()
    for row, ranks in enumerate(tables.recording.ranks.tolist()):
        table.clear()
        places = np.split(tables.drafts.expanded[row], np.cumsum(SHAPE.expand)[:-1])
        for drafted in range(4):
            if drafted:
                table.add(tables.drafts.levels[drafted - 1][0][row].tolist(), places[drafted - 1].tolist())
                own = tables.of_depths[row, drafted - 1], tables.of_budgets[row, drafted - 1]
                np.testing.assert_allclose(own[0], depth_features(np.array(table.level)), rtol=1e-6)
                np.testing.assert_allclose(
                    own[1], budget_features(STAGES, np.array(table.descending)), rtol=1e-6
                )
            for place, budget in enumerate(STAGES.budgets):
                if budget <= len(table.descending):
                    tree = table.best(budget).draft_tree("t")
                    expected = accepted(tree, ranks)
                    assert tables.accepts[row, drafted, place] == expected
                    seen.add(expected)
    assert seen == {0, 1, 2, 3}


def test_parts_that_do_not_fit(tables):
    with pytest.raises(ValueError, match=r"not of the rows of the recording; take drafts.of"):
        dataclasses.replace(tables, recording=tables.recording.select([0]))
    other = dataclasses.replace(STAGES, shape=DraftShape((1,), (20,)), curves=())
    with pytest.raises(ValueError, match="draft again for these stages"):
        dataclasses.replace(tables, stages=other)


def test_calibration_learns_how_often_nodes_are_true():
    """Confidences far too high at depth 1, where the true token always is the best child or absent."""
    rng = np.random.default_rng(5)
    recording = cut_off(random_recording(rng, texts=300, longest=40, cap=40))
    drafts = random_drafts(rng, recording)
    stages = fit_stages("fit", STAGES.budgets, [(recording, drafts)])
    alive = np.flatnonzero((recording.ranks != NO_TOKEN).all(axis=1))
    nodes = drafts.true_nodes(recording.ranks)
    for depth, (values, parents) in enumerate(drafts.levels, start=1):
        start = SHAPE.starts[depth]
        claims = stages.calibrated(depth, values, np.ones(parents.shape))[alive]
        true = nodes[alive, depth - 1, None] == np.arange(values.shape[1]) + start
        assert claims.mean() == pytest.approx(true.mean(), rel=0.05)
        assert ((claims - true) ** 2).mean() < ((values[alive] - true) ** 2).mean()
    assert (stages.name, stages.shape, stages.budgets) == ("fit", SHAPE, STAGES.budgets)


def test_calibration_knows_what_follows_an_eos_and_not_what_follows_the_cap():
    """With heads that are always right, all that could join a text is true, and nothing behind an EOS is."""
    recording = random_recording(np.random.default_rng(3), texts=40, longest=4, cap=4)
    left = np.concatenate([np.arange(n, -1, -1) - 1 for n in recording.lengths])[:, None]
    depths = np.arange(1, 4)
    ranks = np.where(depths <= left + 1, 0, NO_TOKEN).astype(np.int32)
    recording = dataclasses.replace(recording, ranks=ranks)
    drafts = random_drafts(np.random.default_rng(3), recording)
    drafts = dataclasses.replace(drafts, values=np.full_like(drafts.values, 0.5))
    stages = fit_stages("fit", STAGES.budgets, [(recording, drafts)])
    reasons = np.repeat([text.finish_reason for text in recording.texts], recording.lengths + 1)[:, None]
    known = (left >= 0) & ((reasons == "eos") | (depths <= left + 1))
    joins = known & np.where(reasons == "eos", depths <= left, True)
    assert {"eos", "length"} == set(reasons.ravel())
    # The true node is the first child of the first child, if its parent was expanded: always at depth 1.
    assert stages.curves[0].outputs[-1] == pytest.approx(joins[:, 0].sum() / known[:, 0].sum() / 3)
    nodes = drafts.true_nodes(ranks) >= 0
    for depth, width in enumerate(SHAPE.widths):
        share = (joins & nodes)[:, depth].sum() / known[:, depth].sum() / width
        assert stages.curves[depth].outputs[-1] == pytest.approx(share)


def test_texts_that_tell_of_no_depth_are_refused():
    recording = cut_off(random_recording(np.random.default_rng(0), texts=2, longest=1, cap=1))
    with pytest.raises(ValueError, match="no text is long enough to tell of depth 3"):
        fit_stages("s", STAGES.budgets, [(recording, random_drafts(np.random.default_rng(0), recording))])


def test_texts_of_several_recordings_are_pooled():
    rng = np.random.default_rng(1)
    recording = random_recording(rng, texts=8)
    drafts = random_drafts(rng, recording)
    halves = [recording.select(range(4)), recording.select(range(4, 8))]
    whole = fit_stages("s", STAGES.budgets, [(recording, drafts)])
    assert fit_stages("s", STAGES.budgets, [(half, drafts) for half in halves]) == whole
    narrow = random_drafts(rng, recording, DraftShape((1,), (2,)))
    with pytest.raises(ValueError, match="different shapes"):
        fit_stages("s", (0, 1), [(recording, drafts), (recording, narrow)])
