import math

import pytest

from policies.options import increasing_numbers, names, number, whole_number


@pytest.mark.parametrize(("value", "expected"), [(3, 3.0), (0.5, 0.5), ("1e-2", 0.01)])
def test_numbers_are_read(value, expected):
    assert number("x", value) == expected


@pytest.mark.parametrize("value", [True, None, "x", [1], math.nan, "inf", 10**400])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="option x="):
        number("x", value)


@pytest.mark.parametrize("value", [1, 2.5, "x"])
def test_whole_numbers_have_a_minimum(value):
    with pytest.raises(ValueError, match="option x="):
        whole_number("x", value, minimum=2)


def test_lists_come_from_strings_and_sequences():
    assert names("x", "a|b") == names("x", ["a", "b"]) == ("a", "b")
    assert increasing_numbers("x", "0.1|2") == increasing_numbers("x", [0.1, 2]) == (0.1, 2.0)
    assert increasing_numbers("x", 0.5) == (0.5,)
    assert increasing_numbers("x", "") == ()


@pytest.mark.parametrize("value", ["", [], ["a", 1], 3, None, {"a": 1}])
def test_what_is_no_list_of_names_is_refused(value):
    with pytest.raises(ValueError, match="write x="):
        names("x", value)


@pytest.mark.parametrize("value", ["2|1", [1, 1], {"a": 1}, ["a"]])
def test_what_does_not_increase_is_refused(value):
    with pytest.raises(ValueError, match="option x="):
        increasing_numbers("x", value)
