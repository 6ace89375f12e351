import dataclasses
import json

import numpy as np
import pytest

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.stages import Stages, default_stages, load_stages

SHAPE = DraftShape((1, 2), (3, 2))
STAGES = Stages("s", SHAPE, (0, 2, 3, 5), (Curve((0.0, 1.0), (0.0, 0.5)), Curve((0.0, 1.0), (0.0, 1.0))))


def test_actions_and_which_of_them_are_legal():
    assert STAGES.names == ("deeper", "verify-0", "verify-2", "verify-3", "verify-5")
    assert len(STAGES) == 5
    assert STAGES.masks.astype(int).tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]


def test_an_illegal_action_settles_for_the_nearest_legal_one():
    for depth, mask in enumerate(STAGES.masks):
        settled = [STAGES.settle(action, depth) for action in range(len(STAGES))]
        assert [s for s, legal in zip(settled, mask, strict=True) if legal] == mask.nonzero()[0].tolist()
    assert [STAGES.settle(action, 0) for action in range(5)] == [0, 1, 1, 1, 1]
    assert STAGES.settle(4, 1) == 3
    assert STAGES.settle(0, 2) == 4
    for action in (-1, 5):
        with pytest.raises(ValueError, match=rf"action {action} is outside 0..4: deeper, verify-0"):
            STAGES.settle(action, 0)


def test_path_values_are_calibrated_and_never_above_the_parents():
    raw, above = np.array([0.8, 0.1], dtype=np.float32), np.array([1.0, 0.02])
    np.testing.assert_allclose(STAGES.calibrated(1, raw, above), [0.4, 0.02], rtol=1e-6)
    np.testing.assert_allclose(STAGES.calibrated(2, raw, above), [0.8, 0.02], rtol=1e-6)
    plain = dataclasses.replace(STAGES, curves=())
    np.testing.assert_array_equal(plain.calibrated(1, raw, above), [np.float64(np.float32(0.8)), 0.02])


def test_a_file_brings_back_the_same(tmp_path):
    for stages in (STAGES, default_stages()):
        stages.save(tmp_path / "stages.json")
        assert load_stages(str(tmp_path / "stages.json")) == stages
    assert load_stages("default") == default_stages()


def test_the_fingerprint_is_of_everything_but_the_name():
    others = [
        dataclasses.replace(STAGES, curves=()),
        dataclasses.replace(STAGES, budgets=(0, 2, 3)),
        dataclasses.replace(STAGES, shape=DraftShape((1, 2), (4, 2))),
    ]
    prints = {stages.fingerprint for stages in (STAGES, *others)}
    assert len(prints) == 4
    assert dataclasses.replace(STAGES, name="t").fingerprint == STAGES.fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": ()}, "rise from 0"),
        ({"budgets": (1, 2)}, "rise from 0"),
        ({"budgets": (0, 2, 2)}, "rise from 0"),
        ({"budgets": (0, 1.5)}, "rise from 0"),
        ({"budgets": (0, 8)}, "8 nodes exceeds the 7 drafted"),
        ({"curves": STAGES.curves[:1]}, "one curve for each of 2 depths, got 1"),
    ],
)
def test_what_are_no_stages(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(STAGES, **change)


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"budgets": [0, 99]}, {"shape": {}}, {"curves": [{"inputs": [1], "outputs": []}]}],
)
def test_a_wrong_file_is_refused(tmp_path, change):
    path = tmp_path / "stages.json"
    STAGES.save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="does not hold stages"):
        load_stages(str(path))
    with pytest.raises(FileNotFoundError, match=r"no stages 'other'.*Stages.save"):
        load_stages("other")
