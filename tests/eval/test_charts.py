import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.charts import Scale, histogram, scatter
from eval.statistics import Ratio

values = st.floats(0.1, 100)


def test_a_scale_is_linear_and_its_ticks_lie_on_it():
    scale = Scale(2, 4, 100, 0)
    assert [scale(v) for v in (2, 3, 4)] == [100, 50, 0]
    assert [at for at, label in scale.ticks(4)] == [scale(float(label)) for _, label in scale.ticks(4)]
    assert {"2", "3", "4"} <= {label for _, label in scale.ticks(4)}


@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_the_front_is_what_no_point_beats(pairs):
    chart = scatter([(str(i), "", Ratio(x), Ratio(y)) for i, (x, y) in enumerate(pairs)])
    best = {
        (chart.x_axis(x), chart.y_axis(y))
        for x, y in pairs
        if all((a <= x or b < y) and (a < x or b <= y) for a, b in pairs)
    }
    assert set(chart.front) == best
    assert list(chart.front) == sorted(chart.front)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=8))
def test_everything_is_within_the_chart(pairs):
    rows = [(str(i), "", Ratio(x, x / 2, 2 * x), Ratio(y)) for i, (x, y) in enumerate(pairs)]
    chart = scatter(rows)
    for point in chart.points:
        assert all(0 <= x <= chart.width for x in point.x)
        assert point.x[1] <= point.x[0] <= point.x[2]
        assert all(0 <= y <= chart.height for y in point.y)


def test_labels_of_near_points_do_not_overlap():
    chart = scatter([(str(i), "", Ratio(1 + x), Ratio(1 + x)) for i, x in enumerate((0, 0.01, 0.02, 1))])
    places = [point.place for point in chart.points]
    for i, (x, y) in enumerate(places):
        assert all(abs(x - a) >= 16 or abs(y - b) >= 14 for a, b in places[:i])


@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.integers(0, 2)), min_size=1, max_size=60))
def test_a_histogram_counts_every_value_once(pairs):
    scores, groups = (np.array(column) for column in zip(*pairs, strict=True))
    chart = histogram("s", scores, groups, ("a", "b", "c"), bins=5)
    counted = [(bar.group, int(bar.title.rpartition(": ")[2])) for bar in chart.bars]
    for group in range(3):
        assert sum(count for g, count in counted if g == group) == (groups == group).sum()
    columns = {bar.x: 0.0 for bar in chart.bars}
    for bar in chart.bars:
        columns[bar.x] += bar.height
        assert bar.height > 0
    # The fullest column has the chart's whole height.
    assert max(columns.values()) == pytest.approx(chart.height - 26, abs=0.05)


def test_bars_stand_where_their_values_are():
    chart = histogram("s", np.array([0.1, 0.9, 0.9]), np.array([0, 1, 1]), ("a", "b"), bins=2, width=216)
    assert [(bar.title, bar.x, bar.width) for bar in chart.bars] == [
        ("0.00 to 0.50, a: 1", 8, 100),
        ("0.50 to 1.00, b: 2", 108, 100),
    ]
