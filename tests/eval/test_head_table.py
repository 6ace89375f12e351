from rich.console import Console

from eval.draft_cost import DraftCost
from eval.head_scores import score_sets
from eval.head_table import cost_table, scores_table
from tests.eval.test_head_scores import random_text

LONG = "runs/a/very/long/path/to/some/heads-of-mine.safetensors"


def rendered(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_scores_of_two_heads_fit_100_columns_and_lose_nothing():
    deep, shallow = (
        score_sets({"a": [random_text(i, depth=depth) for i in range(4)]}, samples=50)["a"]
        for depth in (4, 2)
    )
    text = rendered(scores_table("file[1].jsonl:evaluation", {"auto": deep, LONG: shallow}))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text.replace("1, 2, …", "")
    assert "file[1].jsonl:evaluation: 4 texts, 200 tokens" in text
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "  ".join(f"{share:.3f}" for share in deep.found[4]) in lines["depth 1, 2, …: rank < 4"]
    tau = deep.tau["chain-2"], shallow.tau["chain-2"]
    for ratio in tau:
        assert f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" in lines["τ chain-2"]
    # Heads of depth 2 have no such tree.
    assert lines["τ hydra-default"].rstrip().endswith("–")


def test_costs_are_milliseconds_and_shares_of_a_step():
    deep = DraftCost(0.02, [0.001, 0.002], [0.001, 0.001, 0.001, 0.002], 0.005, 0.35, [0.05, 0.05, 0.05, 0.1])
    shallow = DraftCost(0.04, [0.0, 0.0], [0.002], 0.002, 0.05, [0.05])
    lines = rendered(cost_table({"auto": deep, "medusa": shallow})).splitlines()
    rows = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert rows["autoregressive step"][-4:] == ["20.00", "ms", "40.00", "ms"]
    assert rows["prefix layer, 1 row"][-8:] == ["1.00", "ms", "0.050", "×", "0.00", "ms", "0.000", "×"]
    assert rows["depth 4 of hydra-default"][-4:] == ["2.00", "ms", "0.100", "×"]
    assert rows["with prefix layer, 3 rows"][-4:] == ["0.350", "×", "0.050", "×"]
