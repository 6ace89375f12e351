import dataclasses

import numpy as np
import pytest

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.staged_drafts import StagedDrafts
from tests.recordings import random_recording
from tests.staged import SHAPE, random_drafts


@pytest.fixture
def made():
    rng = np.random.default_rng(2)
    recording = random_recording(rng, texts=5)
    return recording, random_drafts(rng, recording)


def equal(one, other):
    for name in ("offsets", "tokens", "values", "expanded"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert (one.identity, one.shape, one.prompt_ids) == (other.identity, other.shape, other.prompt_ids)


def test_true_nodes_are_those_whose_path_begins_the_ranks(made):
    recording, drafts = made
    nodes = drafts.true_nodes(recording.ranks)
    found = set()
    for row, ranks in enumerate(recording.ranks.tolist()):
        paths = [()]
        for depth, (_, parents) in enumerate(drafts.levels, start=1):
            children = SHAPE.children[depth - 1]
            paths += [(*paths[p], i % children) for i, p in enumerate(parents[row].tolist())]
        for depth in (1, 2, 3):
            wanted = tuple(ranks[:depth])
            expected = paths.index(wanted) if wanted in paths else -1
            assert nodes[row, depth - 1] == expected
            found.add((depth, expected > 0))
    assert found == {(depth, true) for depth in (1, 2, 3) for true in (True, False)}


def test_a_file_brings_back_the_same(made, tmp_path):
    drafts = made[1]
    drafts.save(tmp_path / "drafts.npz")
    equal(StagedDrafts.load(tmp_path / "drafts.npz"), drafts)


def test_several_files_and_some_of_their_texts(made, tmp_path):
    recording, drafts = made
    rng = np.random.default_rng(3)
    other = random_recording(rng, name="u")
    random_drafts(rng, other).save(tmp_path / "u.npz")
    drafts.save(tmp_path / "t.npz")
    both = StagedDrafts.load([str(tmp_path / "u.npz"), str(tmp_path / "t.npz")])
    equal(both.of(recording), drafts)
    some = Recording.concatenate([recording.select([3, 1]), other.select([2])])
    chosen = both.of(some)
    assert chosen.prompt_ids == ("t3", "t1", "u2")
    rows = slice(*recording.offsets[3:5])
    np.testing.assert_array_equal(chosen.values[: chosen.offsets[1]], drafts.values[rows])


def test_drafts_of_other_texts_are_refused(made):
    recording, drafts = made
    other = dataclasses.replace(recording, manifest=recording.manifest | {"heads_fingerprint": "other"})
    with pytest.raises(ValueError, match="made with heads_fingerprint 'h', the recording with 'other'"):
        drafts.of(other)
    with pytest.raises(ValueError, match="no staged drafts of 5 recorded texts, such as 'u0'"):
        drafts.of(random_recording(np.random.default_rng(2), texts=5, name="u"))
    with pytest.raises(ValueError, match="of other texts than the recorded"):
        drafts.of(dataclasses.replace(recording, tokens=recording.tokens + 1))


def test_drafts_that_do_not_go_together(made, tmp_path):
    recording, drafts = made
    drafts.save(tmp_path / "a.npz")
    shape = DraftShape((1,), (2,))
    random_drafts(np.random.default_rng(0), recording, shape).save(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="different shapes"):
        StagedDrafts.load([str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    recording.save(tmp_path / "c.npz")
    with pytest.raises(ValueError, match="is not a set of staged drafts"):
        StagedDrafts.load(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {"values": d.values.astype(np.float64)}, "values is float64"),
        (lambda d: {"expanded": d.expanded[:, :-1]}, "expanded is uint16"),
        (lambda d: {"values": d.values + 1}, "probabilities"),
        (lambda d: {"values": np.full_like(d.values, np.nan)}, "probabilities"),
        (lambda d: {"expanded": d.expanded + np.uint16(1)}, "places beyond"),
        (lambda d: {"offsets": d.offsets[::-1].copy()}, "offsets must rise"),
    ],
)
def test_parts_that_do_not_fit(made, change, message):
    drafts = made[1]
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(drafts, **change(drafts))
