import pytest
from rich.console import Console

from eval.summary import summarise
from eval.table import comparison_table

LONG = "mypkg.mymodule:MyPolicy,score=deep_path_value,on=0.4,off=0.3"


@pytest.fixture
def summaries(episode):
    def texts(seconds, tree):
        return [episode(q, *[(tree, 2, seconds * scale)] * 3, text=q) for q, scale in (("a", 1), ("b", 1.25))]

    def build(baseline="hydra-default"):
        episodes = {"autoregressive": texts(0.2, 0), "hydra-default": texts(0.15, 9), LONG: texts(0.1, 4)}
        return summarise(episodes, baseline, samples=50)

    return build


def rendered(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_table_fits_100_columns_and_loses_nothing(summaries):
    text = rendered(comparison_table("file[1].jsonl:evaluation", summaries(), "hydra-default"))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    assert "file[1].jsonl:evaluation: 2 prompts" in text
    row = next(line for line in text.splitlines() if "★" in line and "mypkg" in line)
    assert "2.00 [2.00, 2.00]" in row
    assert "1.500 [1.500, 1.500]" in row
    assert "17.8" in row
    assert "2/2" in row
    first_column = "".join(line[:21].strip(" ★") for line in text.splitlines())
    assert LONG in first_column


def test_only_the_fastest_row_is_marked(summaries):
    text = rendered(comparison_table("chat", summaries(), "hydra-default"))
    marked = [line for line in text.splitlines() if line.startswith(" ★")]
    assert len(marked) == 1
    assert "mypkg" in marked[0]


def test_a_ratio_to_the_reference_is_not_shown_twice(summaries):
    text = rendered(comparison_table("chat", summaries("autoregressive"), "autoregressive"))
    assert text.count("[1.00, 1.00]") == 1
    assert "1.000" not in text


def test_one_prompt_shows_no_interval(episode):
    table = comparison_table(
        "chat", summarise({"autoregressive": [episode("a", (0, 1, 0.1))]}, "autoregressive"), "x"
    )
    assert "[1" not in rendered(table)
    assert "1.000" in rendered(table)


def test_rows_are_told_apart_by_where_their_files_are(episode):
    own = [episode("a", (0, 1, 0.1))]
    specs = ("threshold@runs/chat/threshold.json", "threshold@runs/math/threshold.json")
    rows = summarise(dict.fromkeys(("autoregressive", *specs), own), "autoregressive", samples=50)
    text = "".join(
        line[:22].strip(" ★") for line in rendered(comparison_table("x", rows, "autoregressive")).splitlines()
    )
    assert "threshold@chat/threshold.json" in text
    assert "threshold@math/threshold.json" in text
