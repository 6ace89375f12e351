from hypothesis import given
from hypothesis import strategies as st

from eval.labels import fold_spec, label_paths, label_specs


@given(st.text(alphabet="ab:,=|@_-.", max_size=60), st.integers(1, 30))
def test_nothing_is_lost_and_no_line_is_too_long(spec, width):
    folded = fold_spec(spec, width)
    assert folded.replace("\n", "") == spec
    assert max(map(len, folded.split("\n"))) <= width


def test_parts_stay_whole_where_they_fit():
    assert fold_spec("threshold:on=0.4,small=tree-4x2", 16) == "threshold:\non=0.4,\nsmall=tree-4x2"
    assert fold_spec("static:tree-8x4", 16) == "static:tree-8x4"
    assert fold_spec("score=deep_path_value", 16) == "score=deep_path_\nvalue"


def test_of_a_policy_file_as_much_is_shown_as_tells_it_apart():
    specs = {
        "static@runs/demo/static.json": "static@static.json",
        "threshold@runs/a/chat/threshold.json": "threshold@a/chat/threshold.json",
        "threshold@runs/b/chat/threshold.json": "threshold@b/chat/threshold.json",
        r"threshold@runs\math\threshold.json": r"threshold@math\threshold.json",
        "threshold@threshold.json": "threshold@threshold.json",
        "threshold:on=0.7@runs/a/chat/threshold.json": "threshold:on=0.7@threshold.json",
        "mypkg.mymodule:MyPolicy,path=a/b": "mypkg.mymodule:MyPolicy,path=a/b",
    }
    assert label_specs(specs) == specs
    assert label_specs(["threshold@runs/a/chat/threshold.json"] * 2) == {
        "threshold@runs/a/chat/threshold.json": "threshold@threshold.json"
    }
    assert label_specs([]) == {}


def test_paths_are_told_apart_likewise():
    paths = {
        "a/b/chat.npz:evaluation": "b/chat.npz:evaluation",
        "a/c/chat.npz:evaluation": "c/chat.npz:evaluation",
    }
    assert label_paths(paths) == paths
    assert label_paths(["a/b/chat.npz", "math"]) == {"a/b/chat.npz": "chat.npz", "math": "math"}


@given(st.sets(st.text(alphabet="ab@/", max_size=8), max_size=9))
def test_no_two_labels_are_the_same(specs):
    labels = label_specs(specs)
    assert labels.keys() == specs
    assert len(set(labels.values())) == len(specs)
    for spec, label in labels.items():
        assert label.partition("@")[0] == spec.partition("@")[0]
        assert spec.endswith(label.partition("@")[2])
