import io

from rich.console import Console

from tests.train.test_measured_tree import measured
from train.frontier_table import frontier_table, optimality_table

TREES = [
    measured(0, 2.0, "autoregressive", None, steps=20),
    measured(1, 4.0, estimate=1.06),
    measured(2, 6.0, estimate=0.96),
    measured(2, 6.3, "optimal", estimate=1.0),
    measured(2, 5.0, "optimal", estimate=1.0, name="slow"),
    measured(3, 5.0, "published", None),
]


def shown(table):
    console = Console(width=100, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_the_table_has_biases_throughput_and_the_hull():
    lines = shown(frontier_table(TREES, "title [x]"))
    assert ["title", "[x]"] in lines
    assert ["autoregressive", "0", "0", "1.000", "2.00", "1.000", "●"] in lines
    assert ["greedy-1", "1", "1", "2.060", "2.000", "+3.00", "4.00", "2.000", "●"] in lines
    assert ["greedy-2", "2", "2", "1.960", "2.000", "-2.00", "6.00", "3.000"] in lines
    assert ["optimal-2", "2", "2", "2.000", "2.000", "+0.00", "6.30", "3.150", "★"] in lines
    assert ["published-3", "3", "3", "2.000", "5.00", "2.500"] in lines
    assert not any("slow" in line for line in lines)


def test_what_greedy_leaves_is_against_the_fastest_optimal_tree():
    lines = shown(optimality_table(TREES))
    assert ["2", "2.000", "6.00", "2.000", "2", "6.30", "1.0500"] in lines
    assert not any(line and line[0] in ("1", "3") for line in lines)
