from rich.console import Console

from eval.paper_claims import Claim
from eval.paper_table import claim_line, paper_table
from eval.statistics import Ratio
from eval.summary import summarise


def test_a_task_that_the_paper_does_not_report_has_no_columns_of_it(episode):
    episodes = {"autoregressive": [episode("q1", (0, 1, 0.5), prefill=0.5)]}
    rows = summarise(episodes, "autoregressive", samples=10)
    for task, count in (("gsm8k", 7), ("litbench", 4)):
        table = paper_table(task, f"{task}:evaluation", rows, {"autoregressive": "Vanilla"})
        assert len(table.columns) == count
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    # One token in a second, half of it prefill.
    (line,) = [line.split() for line in capture.get().splitlines() if "Vanilla" in line]
    assert line == ["★", "Vanilla", "1.0", "1.00", "1.00"]


def test_a_claim_is_a_sentence_with_both_numbers():
    line = claim_line("gsm8k", Claim("Hydra", "Medusa", Ratio(1.25, 1.1, 1.4), 1.171, 100))
    assert line == "gsm8k: Hydra faster than Medusa: holds (1.25 [1.10, 1.40]; paper: 1.17)"
    line = claim_line("arc", Claim("EntMTP*", "Hydra", Ratio(0.9), None, 100))
    assert line == "arc: EntMTP* faster than Hydra: undecided (0.90)"
