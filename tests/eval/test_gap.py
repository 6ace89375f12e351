import pytest
from rich.console import Console

from eval.gap import gap_table, measure_gap, orders

LIVE = (("a", (1, 2, 0.1), (0, 1, 0.1)), ("b", (2, 3, 0.2), (2, 2, 0.2)))


@pytest.fixture
def build(episode):
    return lambda *texts: [episode(name, *steps, policy_seconds=9.0, text=name) for name, *steps in texts]


def test_a_perfect_replay(build):
    live = build(*LIVE)
    gap = measure_gap("p", live, live, live, ["a", "b"], samples=50)
    assert (gap.other_accept, gap.other_tree, gap.other_text, gap.first) == (0, 0, 0, None)
    assert (gap.texts, gap.steps) == (2, 4)
    assert gap.live_tokens_per_second == pytest.approx(8 / 0.6)
    assert (gap.ratio.low, gap.ratio.value, gap.ratio.high) == pytest.approx((1, 1, 1))


def test_differences_are_counted_where_they_are(build):
    live = build(*LIVE)
    repeated = build(("a", (1, 2, 0.1), (0, 1, 0.1)), ("b", (2, 3, 0.2), (2, 1, 0.2), (2, 1, 0.2)))
    chosen = build(("a", (3, 2, 0.05), (0, 1, 0.1)), ("b", (2, 3, 0.2), (1, 2, 0.05)))
    gap = measure_gap("p", live, repeated, chosen, ["a", "c"], samples=50)
    assert gap.other_accept == 2
    assert gap.first == ("b", 1)
    assert gap.other_tree == 2
    assert gap.other_text == 1
    assert gap.replayed_tokens_per_second == pytest.approx(8 / 0.4)
    assert gap.ratio.value == pytest.approx(0.6 / 0.4)
    # Resampled texts are a, b or both.
    assert (gap.ratio.low, gap.ratio.high) == pytest.approx((0.2 / 0.15, 0.4 / 0.25))


def test_the_orders(build):
    def gap(name, live, replayed):
        (one,), (other,) = build(("a", (0, 1, 1 / live))), build(("a", (0, 1, 1 / replayed)))
        return measure_gap(name, [one], [one], [other], ["a"])

    assert orders([gap("x", 1, 5), gap("y", 3, 3), gap("z", 2, 4)]) == (["y", "z", "x"], ["x", "z", "y"])


def test_the_table_fits_100_columns_and_loses_nothing(build):
    live = build(*LIVE)
    gap = measure_gap(
        "mypkg.mymodule:MyPolicy,score=deep_path_value", live, live, live, ["a", "c"], samples=9
    )
    console = Console(width=100)
    with console.capture() as capture:
        console.print(gap_table("file[1].jsonl", [gap]))
    text = capture.get()
    assert "…" not in text
    assert "file[1].jsonl" in text
    row = next(line for line in text.splitlines() if "mypkg" in line)
    assert row.split()[1:] == ["13.3", "13.3", "1.000", "4", "0", "0", "1/2"]
    assert "[1.000, 1.000]" in text
