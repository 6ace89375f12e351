from hypothesis import given
from hypothesis import strategies as st

from eval.labels import fold_spec


@given(st.text(alphabet="ab:,=|@_-.", max_size=60), st.integers(1, 30))
def test_nothing_is_lost_and_no_line_is_too_long(spec, width):
    folded = fold_spec(spec, width)
    assert folded.replace("\n", "") == spec
    assert max(map(len, folded.split("\n"))) <= width


def test_parts_stay_whole_where_they_fit():
    assert fold_spec("threshold:on=0.4,small=tree-4x2", 16) == "threshold:\non=0.4,\nsmall=tree-4x2"
    assert fold_spec("static:tree-8x4", 16) == "static:tree-8x4"
    assert fold_spec("score=deep_path_value", 16) == "score=deep_path_\nvalue"


def test_a_policy_file_goes_by_its_name():
    assert fold_spec("static@runs/demo/static.json", 30) == "static@static.json"
