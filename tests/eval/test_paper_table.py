from rich.console import Console

from eval.paper_claims import Claim
from eval.paper_table import claim_line, paper_table
from eval.statistics import Ratio
from eval.summary import summarise


def test_a_task_that_the_paper_does_not_report_has_no_columns_of_it(episode):
    episodes = {"autoregressive": [episode("q1", (0, 1, 0.5), prefill=0.5)]}
    rows = summarise(episodes, "autoregressive", samples=10)
    for task, count in (("gsm8k", 8), ("litbench", 5)):
        table = paper_table(task, f"{task}:evaluation", rows, {"autoregressive": "Vanilla"}, "autoregressive")
        assert len(table.columns) == count
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    # One token in a second, half of it prefill.
    (line,) = [line.split() for line in capture.get().splitlines() if "★" in line]
    assert line == ["★", "Vanilla", "1.0", "1.00", "1.00", "1.000"]


def test_rows_are_divided_by_the_baseline_prefill_included_and_the_widest_fit_100_columns(episode):
    def texts(seconds, tree):
        return [episode(q, *[(tree, 2, seconds * k)] * 3, prefill=0.5) for q, k in (("a", 1), ("b", 1.25))]

    star = "static@runs/{task}/static.json"
    episodes = {
        "autoregressive": texts(0.2, 0),
        star: texts(0.1, 1),
        "staged-threshold@smollm2-staged": texts(0.05, 2),
    }
    rows = summarise(episodes, star, samples=50)
    methods = {"autoregressive": "Vanilla", star: "EntMTP*"}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(paper_table("gsm8k", "gsm8k@test.parquet:evaluation", rows, methods, star))
        console.print(paper_table("gsm8k", "gsm8k@test.parquet:evaluation", rows, {}, star))
    text = capture.get()
    assert "× EntMTP*" in text
    assert "× static@static" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100
    (staged, _) = [line.split() for line in text.splitlines() if "staged-threshold@" in line]
    # 12 tokens in 0.3375 s of steps against 0.675 s, and 1 s of prefill.
    assert staged[-3] == f"{1.675 / 1.3375:.3f}"


def test_a_claim_is_a_sentence_with_both_numbers():
    line = claim_line("gsm8k", Claim("Hydra", "Medusa", Ratio(1.25, 1.1, 1.4), 1.171, 100))
    assert line == "gsm8k: Hydra faster than Medusa: holds (1.25 [1.10, 1.40]; paper: 1.17)"
    line = claim_line("arc", Claim("EntMTP*", "Hydra", Ratio(0.9), None, 100))
    assert line == "arc: EntMTP* faster than Hydra: undecided (0.90)"
