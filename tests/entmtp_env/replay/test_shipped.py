from pathlib import Path

import numpy as np
import pytest

from entmtp_env.replay import shipped
from entmtp_env.replay.recording import Recording
from entmtp_env.replay.shipped import load_recording, shipped_recordings
from tests.recordings import random_recording


@pytest.fixture
def path(tmp_path):
    """A recording of five texts."""
    random_recording(np.random.default_rng(0), texts=5).save(tmp_path / "five.npz")
    return str(tmp_path / "five.npz")


def ids(recording):
    return [text.prompt_id for text in recording.texts]


def test_a_file_and_its_halves(path):
    assert ids(load_recording(path)) == ["t0", "t1", "t2", "t3", "t4"]
    assert ids(load_recording(f"{path}:calibration")) == ["t0", "t1", "t2"]
    half = load_recording(f"{path}:evaluation")
    assert ids(half) == ["t3", "t4"]
    whole = Recording.load(path)
    np.testing.assert_array_equal(half.ranks, whole.ranks[whole.offsets[3] :])


def test_several_are_one(path, tmp_path):
    random_recording(np.random.default_rng(1), texts=2, name="u").save(tmp_path / "two.npz")
    both = load_recording([f"{path}:evaluation", str(tmp_path / "two.npz")])
    assert ids(both) == ["t3", "t4", "u0", "u1"]
    assert load_recording((path,)).texts == load_recording(path).texts
    with pytest.raises(ValueError, match="prompt id"):
        load_recording([path, path])


def test_a_shipped_one_by_name(path, monkeypatch):
    monkeypatch.setattr(shipped, "shipped_recordings", lambda: {"five": Path(path)})
    assert ids(load_recording("five:evaluation")) == ["t3", "t4"]
    with pytest.raises(FileNotFoundError, match=r"no recording 'six': expected .*five.*train record"):
        load_recording("six:evaluation")


def test_all_that_ship_can_be_loaded():
    for name, path in shipped_recordings().items():
        assert path.stem == name
        assert len(load_recording(name).texts) > 1


def test_what_is_not_there_is_named(path, tmp_path):
    for missing in (str(tmp_path / "none.npz"), f"{path}:training", str(tmp_path)):
        with pytest.raises(FileNotFoundError, match="no recording"):
            load_recording(missing)
    with pytest.raises(ValueError, match="at least one recording"):
        load_recording([])


def test_half_of_a_single_text_may_be_nothing(tmp_path):
    random_recording(np.random.default_rng(0), texts=1).save(tmp_path / "one.npz")
    assert ids(load_recording(f"{tmp_path}/one.npz:calibration")) == ["t0"]
    with pytest.raises(ValueError, match=r"one.npz:evaluation' has no texts: the recording has only 1"):
        load_recording(f"{tmp_path}/one.npz:evaluation")
