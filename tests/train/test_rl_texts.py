import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.recording import IDENTITY, Recording
from entmtp_env.replay.shipped import load_recording
from tests.recordings import random_recording
from train.rl_texts import CALIBRATION, EVALUATION, held_out_of, split_texts


@pytest.fixture
def saved(tmp_path):
    """Saves a random recording of so many texts."""

    def save(name, texts):
        path = tmp_path / f"{name}.npz"
        random_recording(np.random.default_rng(texts), texts=texts, name=name).save(path)
        return str(path)

    return save


def ids(specs):
    return [text.prompt_id for text in load_recording(specs).texts]


@pytest.mark.parametrize("texts", [2, 3, 4, 5, 11])
def test_every_fourth_text_is_held_out(tmp_path, saved, texts):
    own = saved("t", texts)
    train, held_out = split_texts([own], [], tmp_path / "out")
    expected = ["t3", "t7"][: texts // 4] or [f"t{texts - 1}"]
    assert ids(held_out) == expected
    assert ids(train) == [name for name in ids(own) if name not in expected]


def test_of_several_recordings_all_are_held_out_from(tmp_path, saved):
    _, held_out = split_texts([saved("a", 8), saved("b", 8)], [], tmp_path / "out")
    assert ids(held_out) == ["a3", "a7", "b3", "b7"]


def test_named_recordings_stay_as_they_are(tmp_path, saved):
    a, b = saved("a", 3), saved("b", 2)
    assert split_texts([a], [b], tmp_path / "out") == ((a,), (b,))
    assert not (tmp_path / "out").exists()


def test_a_text_cannot_be_in_both(tmp_path, saved):
    own = saved("a", 6)
    with pytest.raises(ValueError, match=r"3 held-out texts are trained on, too, such as 'a3'"):
        split_texts([own], [f"{own}:evaluation"], tmp_path)
    with pytest.raises(ValueError, match="leaves none to hold out"):
        split_texts([saved("one", 1)], [], tmp_path)


@pytest.mark.parametrize("key", IDENTITY)
def test_texts_of_another_model_are_not_held_out(tmp_path, saved, key):
    own, other = saved("a", 3), Recording.load(saved("b", 2))
    value = 11 if key == "max_new_tokens" else "another"
    dataclasses.replace(other, manifest=other.manifest | {key: value}).save(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=f"held-out recordings have {key} {value!r}, those to train on"):
        split_texts([own], [str(tmp_path / "b.npz")], tmp_path / "out")


def test_the_other_halves_are_held_out_of_the_shipped_ones_only():
    assert held_out_of(CALIBRATION, ()) == EVALUATION
    assert not set(ids(CALIBRATION)) & set(ids(EVALUATION))
    assert held_out_of(("own.npz",), ()) == held_out_of(CALIBRATION[:1], ()) == ()
    assert held_out_of(CALIBRATION, ["own.npz"]) == ("own.npz",)
