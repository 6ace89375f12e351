from rich.console import Console

from eval.losslessness_scores import Losses
from eval.losslessness_table import losslessness_table
from eval.statistics import Ratio

GAP, SHARES = Ratio(-0.0312, -0.0401, -0.0223), Ratio(0.101, 0.072, 0.129)


def test_the_widest_rows_fit_100_columns():
    rows = [
        Losses("autoregressive", 100, 1.2345, Ratio(0, 0, 0), 100, (), 0.131, Ratio(0, 0, 0)),
        Losses("staged-threshold@smollm2-staged", 100, 1.2033, GAP, 3, (0.00042, 0.00123), 0.232, SHARES),
    ]
    console = Console(width=100)
    with console.capture() as capture:
        console.print(losslessness_table("gsm8k@test.parquet:evaluation", rows))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for part in ("does not", "hold", "3/100", "0.00082", "0.0012", "0.232, +0.101", "[+0.072, +0.129]"):
        assert part in text
    assert "-0.0312" in text
    assert "[-0.0401, -0.0223]" in text
