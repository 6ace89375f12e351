import dataclasses
import pickle
from dataclasses import asdict
from random import Random

import numpy as np
import pytest

from entmtp_env.replay.recording import IDENTITY, RecordedText, Recording
from entmtp_env.sealed_npz import load_sealed, save_sealed
from entmtp_env.trees import DraftTree

ARRAYS = (
    "offsets",
    "tokens",
    "ranks",
    "base_top1",
    "base_entropy",
    "head_top1",
    "head_entropy",
    "root_shape",
    "path_values",
)
MANIFEST = {key: f"any {key}" for key in IDENTITY} | {"max_new_tokens": 9, "seed": 3}
CANDIDATES = DraftTree("candidates", ((0,), (1,), (0, 0)))


def random_recording(lengths, seed=0, depth=3, prefix="p", **changes):
    random = np.random.default_rng(seed)
    rows = sum(lengths) + len(lengths)

    def unit(*shape):
        return random.random((rows, *shape)).astype(np.float32)

    parts = {
        "manifest": MANIFEST,
        "texts": tuple(
            RecordedText(f"{prefix}{i}", 5 + i, 2**64 - 1 - i, "length", f"text {i}\n…")
            for i in range(len(lengths))
        ),
        "offsets": np.cumsum([0, *(length + 1 for length in lengths)]),
        "tokens": random.integers(0, 99, rows).astype(np.int32),
        "ranks": random.integers(-1, 99, (rows, depth)).astype(np.int32),
        "base_top1": unit(),
        "base_entropy": unit(),
        "head_top1": unit(depth),
        "head_entropy": unit(depth),
        "root_shape": unit(5) < 0.5,
        "candidates": CANDIDATES,
        "path_values": unit(len(changes.get("candidates", CANDIDATES))).astype(np.float16),
    }
    return Recording(**(parts | changes))


def assert_equal(first, second):
    assert (first.manifest, first.texts, first.candidates) == (
        second.manifest,
        second.texts,
        second.candidates,
    )
    for name in ARRAYS:
        assert getattr(first, name).dtype == getattr(second, name).dtype
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("candidates", [CANDIDATES, DraftTree("candidates")])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 7, 2]])
def test_what_was_saved_is_loaded(tmp_path, lengths, candidates):
    recording = random_recording(lengths, candidates=candidates)
    recording.save(tmp_path / "r.npz")
    assert_equal(Recording.load(tmp_path / "r.npz"), recording)


def test_it_is_pickled_whole():
    recording = random_recording([3, 1])
    assert_equal(pickle.loads(pickle.dumps(recording)), recording)


def test_it_says_how_large_it_is_and_whether_it_is_exact():
    recording = random_recording([3, 1, 7])
    assert (recording.depth, recording.lengths.tolist(), recording.approximate) == (3, [3, 1, 7], False)
    assert random_recording([1], manifest=MANIFEST | {"approximate": True}).approximate
    assert not random_recording([1], manifest=MANIFEST | {"approximate": False}).approximate


def test_the_fingerprint_is_that_of_the_content(tmp_path):
    recording = random_recording([3, 1, 7])
    recording.save(tmp_path / "r.npz")
    elsewhere = dataclasses.replace(
        Recording.load(tmp_path / "r.npz"), manifest=MANIFEST | {"machine": "another"}
    )
    parts = [recording.select(chosen) for chosen in ([0, 1], [2], [0, 1, 2])]
    assert recording.fingerprint == elsewhere.fingerprint == parts[2].fingerprint
    assert recording.fingerprint == Recording.concatenate(parts[:2]).fingerprint
    assert len({part.fingerprint for part in [*parts, recording.select([1, 0])]}) == 4


def test_whatever_changes_changes_the_fingerprint():
    recording = random_recording([3, 1, 7])
    changes = [
        {"texts": (*recording.texts[:-1], dataclasses.replace(recording.texts[-1], seed=4))},
        {"candidates": DraftTree("candidates", ((0,), (1,), (2,)))},
        {"offsets": np.array([0, 3, 6, 14])},
    ]
    for name in ARRAYS[1:]:
        array = getattr(recording, name).copy()
        array.flat[-1] = not array.flat[-1]
        changes.append({name: array})
    changed = [dataclasses.replace(recording, **change) for change in changes]
    assert len({part.fingerprint for part in (recording, *changed)}) == len(changes) + 1


@pytest.mark.parametrize("chosen", [[2], [1, 3], [3, 0, 2, 1]])
def test_selected_texts_keep_their_rows(chosen):
    recording = random_recording([3, 1, 7, 2])
    selected = recording.select(chosen)
    assert (selected.manifest, selected.candidates) == (recording.manifest, recording.candidates)
    assert selected.texts == tuple(recording.texts[i] for i in chosen)
    for new, old in enumerate(chosen):
        for name in ARRAYS[1:]:
            own = getattr(selected, name)[selected.offsets[new] : selected.offsets[new + 1]]
            expected = getattr(recording, name)[recording.offsets[old] : recording.offsets[old + 1]]
            np.testing.assert_array_equal(own, expected)
    assert len(selected.tokens) == sum(recording.lengths[i] + 1 for i in chosen)


def test_concatenation_undoes_selection():
    recording = random_recording([3, 1, 7, 2])
    parts = [recording.select(chosen) for chosen in ([0], [1, 2], [3])]
    assert_equal(Recording.concatenate(parts), recording)
    assert_equal(Recording.concatenate([recording]), recording)


@pytest.mark.parametrize("key", IDENTITY)
def test_recordings_of_different_origin_are_not_mixed(key):
    value = 7 if key == "max_new_tokens" else "another"
    other = random_recording([2], prefix="q", manifest=MANIFEST | {key: value})
    with pytest.raises(ValueError, match=f"differ in {key}: .* and {value!r}; record them with the same"):
        Recording.concatenate([random_recording([3]), random_recording([2], prefix="r"), other])


def test_the_manifest_of_several_has_what_all_agree_on():
    settings = {key: MANIFEST[key] for key in IDENTITY}
    first, second = ({"seed": 4, "prompts": [name]} for name in ("chat", "math"))
    parts = [
        random_recording([2], prefix=name, manifest=settings | own)
        for name, own in (("a", first), ("b", second), ("c", {"prompts": ["chat"]}))
    ]
    assert Recording.concatenate(parts[:2]).manifest == settings | {"seed": 4, "prompts": ["chat", "math"]}
    assert Recording.concatenate(parts[::2]).manifest == settings | {"prompts": ["chat"]}
    assert Recording.concatenate(parts).manifest == settings | {"prompts": ["chat", "math"]}


def test_the_consistency_of_several_is_that_of_all_tokens():
    parts = [
        random_recording(lengths, prefix=name, manifest=MANIFEST | {"consistency": share, "run": name})
        for name, lengths, share in (("a", [3, 3], 0.5), ("b", [2], 1.0))
    ]
    both = Recording.concatenate(parts)
    assert both.manifest == MANIFEST | {"consistency": pytest.approx((0.5 * 6 + 1.0 * 2) / 8)}
    assert Recording.concatenate([both, random_recording([4], prefix="c")]).manifest == MANIFEST
    assert Recording.concatenate(parts[:1]).manifest == parts[0].manifest


def test_recordings_that_do_not_belong_together_are_not_mixed():
    first = random_recording([3])
    with pytest.raises(ValueError, match="different candidates"):
        Recording.concatenate([first, random_recording([2], prefix="q", candidates=DraftTree("candidates"))])
    with pytest.raises(ValueError, match="prompt id of its own"):
        Recording.concatenate([first, random_recording([2])])


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_of_another_shape_or_type_is_named(name):
    recording = random_recording([3, 1])
    array = getattr(recording, name)
    for wrong in (array[:-1], array[None], array.astype(np.float64)):
        if name == "tokens" and len(wrong) == len(array) - 1:
            # The rows of all others are counted by the tokens.
            continue
        with pytest.raises(ValueError, match=rf"recording: \w+ is {wrong.dtype}.*, expected "):
            dataclasses.replace(recording, **{name: wrong})
    with pytest.raises(ValueError, match=rf"recording: {name} is float64"):
        dataclasses.replace(recording, **{name: array.astype(np.float64)})


@pytest.mark.parametrize(
    "name", [name for name in ARRAYS if "top1" in name or "ntropy" in name or "val" in name]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_found(name, value):
    recording = random_recording([3, 1])
    array = getattr(recording, name).copy()
    array.reshape(-1)[-1] = value
    with pytest.raises(ValueError, match=f"{name} has values that are not finite"):
        dataclasses.replace(recording, **{name: array})


@pytest.mark.parametrize("offsets", [[1, 4, 6], [0, 4, 5], [0, 5, 6], [0, 6, 6], [0, 7, 6], [0, -2, 6]])
def test_offsets_that_do_not_cut_the_rows_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets must rise"):
        dataclasses.replace(random_recording([3, 1]), offsets=np.array(offsets))


@pytest.mark.parametrize("key", IDENTITY)
def test_a_manifest_must_say_what_made_it(key):
    manifest = {name: value for name, value in MANIFEST.items() if name != key}
    with pytest.raises(ValueError, match=f"the manifest lacks {key}$"):
        random_recording([3], manifest=manifest)


def test_texts_must_have_ids_of_their_own():
    recording = random_recording([3, 1])
    with pytest.raises(ValueError, match="prompt id of its own"):
        dataclasses.replace(recording, texts=(recording.texts[0],) * 2)
    with pytest.raises(ValueError, match="one or more texts"):
        random_recording([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"has format 2, this version reads 1; record it again"),
        ({"format": None}, r"has format None, this version reads 1"),
        ({"texts": [{"prompt_id": "p"}] * 2}, r"no valid recording: .*prompt_tokens"),
        ({"texts": 3}, "no valid recording"),
        ({"texts": [asdict(RecordedText("p", 1, 0, "eos", "")) | {"seed": "0"}]}, "seed of a text is '0'"),
        ({"texts": [asdict(RecordedText("p", -1, 0, "eos", ""))]}, "prompt_tokens of a text is -1"),
        ({"manifest": MANIFEST | {"max_new_tokens": "9"}}, "max_new_tokens must be a whole number .* '9'"),
        ({"manifest": list(MANIFEST)}, "the manifest is no JSON object"),
        ({"candidates": [[0, 0]]}, r"no valid recording: .*needs its parent"),
        ({"candidates": [[0.5]]}, "no valid recording"),
        ({"manifest": {}}, "no valid recording: .*lacks"),
        ({"manifest": None}, "no valid recording"),
    ],
)
def test_a_sealed_file_of_other_content_is_refused(tmp_path, change, message):
    path = tmp_path / "r.npz"
    random_recording([3, 1]).save(path)
    header, arrays = load_sealed(path, "recording")
    save_sealed(path, "recording", header | change, arrays)
    with pytest.raises(ValueError, match=message) as caught:
        Recording.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("missing", [*ARRAYS, "texts", "candidates", "manifest"])
def test_a_sealed_file_that_lacks_a_part_is_refused(tmp_path, missing):
    path = tmp_path / "r.npz"
    random_recording([3, 1]).save(path)
    header, arrays = load_sealed(path, "recording")
    header.pop(missing, None)
    arrays.pop(missing, None)
    save_sealed(path, "recording", header, arrays)
    with pytest.raises(ValueError, match=rf"r.npz is no valid recording: .*{missing}"):
        Recording.load(path)


def test_a_sealed_file_with_a_part_too_many_is_refused(tmp_path):
    path = tmp_path / "r.npz"
    random_recording([3, 1]).save(path)
    header, arrays = load_sealed(path, "recording")
    save_sealed(path, "recording", header, arrays | {"extra": np.zeros(3)})
    with pytest.raises(ValueError, match=r"no valid recording: .*extra"):
        Recording.load(path)


def test_changed_files_are_refused(tmp_path):
    path, random = tmp_path / "r.npz", Random(0)
    random_recording([3, 1]).save(path)
    data = path.read_bytes()
    for _ in range(200):
        changed = bytearray(data)
        changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="damaged or is no recording"):
            Recording.load(path)
    save_sealed(path, "cost table", {"format": 1}, {})
    with pytest.raises(ValueError, match="is not a recording"):
        Recording.load(path)
