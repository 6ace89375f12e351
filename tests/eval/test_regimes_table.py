import dataclasses

import pytest
from rich.console import Console

from eval.regimes_analysis import CLASSIFIED, Lead, TaskRegimes
from eval.regimes_statistics import Estimate
from eval.regimes_table import auroc_table, correlation_table, verdicts, write

FAMILIES = {
    "accept_ema_16": "history",
    "base_entropy": "entropy",
    "path_value_1": "heads",
    "last_tree": "position",
}


def near(value):
    return Estimate(value, value - 0.04, value + 0.04)


@pytest.fixture
def task():
    """Builds what was found on a task, from r of the two sides and their difference's interval."""

    def build(history=0.5, entropy=-0.2, difference=(0.2, 0.4), auroc=0.6):
        r = {"accept_ema_16": near(history), "base_entropy": near(entropy), "path_value_1": near(0.1)}
        return TaskRegimes(
            generations=12,
            steps=345,
            tokens_per_step=2.344,
            none_accepted=0.256,
            families=FAMILIES,
            correlations=r | {"last_tree": None},
            aurocs=dict.fromkeys(CLASSIFIED, near(auroc)) | {"history": near(0.58), "entropy": None},
            within=dict.fromkeys(CLASSIFIED, near(0.53)),
            lead=Lead("accept_ema_16", "base_entropy", Estimate(abs(history) - abs(entropy), *difference)),
            approximate=False,
        )

    return build


def lines(table):
    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return [line for line in capture.get().splitlines() if line.strip()]


def test_numbers_are_written_without_a_leading_zero():
    assert write(Estimate(-0.314, -0.368, 0.05)) == "-.31 [-.37, .05]"
    assert write(Estimate(1.0, 0.999, 1.0)) == "1.00 [1.00, 1.00]"
    assert write(None) == "–"


def test_features_stand_by_family_and_the_strongest_is_starred(task):
    weak = task(history=0.05, entropy=-0.3)
    found = lines(correlation_table({"chat": task(), "math:evaluation": weak}))
    rows = [line.split() for line in found if line.split()[0] in FAMILIES]
    assert [row[0] for row in rows] == ["accept_ema_16", "base_entropy", "path_value_1", "last_tree"]
    assert rows[0][1:5] == ["★", ".50", "[.46,", ".54]"]
    assert rows[1][1:] == ["-.20", "[-.24,", "-.16]", "★", "-.30", "[-.34,", "-.26]"]
    assert rows[3][1:] == ["–", "–"]
    assert sum(line.count("★") for line in found) == 2


def test_four_tasks_fit_into_100_columns(task):
    own = dataclasses.replace(task(-0.5, -0.6), approximate=True)
    tasks = dict.fromkeys(("a/long/path/of_a_recording.npz:evaluation", "math", "humaneval", "chat"), own)
    for table in (correlation_table(tasks), auroc_table(tasks)):
        text = "\n".join(lines(table))
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 100
        assert text.count("(approximate)") == 4
        assert "of_a_recording" in text
        assert "a/long" not in text


def test_recordings_of_one_name_are_told_apart(task):
    text = "".join("".join(lines(auroc_table({"runs/a/x.npz": task(), "runs/b/x.npz": task()}))).split())
    assert "a/x.npzb/x.npz" in text


def test_the_table_of_steps(task):
    rows = {line.split("  ")[0].strip(): line.split() for line in lines(auroc_table({"chat": task()}))}
    assert rows["texts"][-1] == "12"
    assert rows["steps"][-1] == "345"
    assert rows["tokens per step"][-1] == "2.34"
    assert rows["accept no draft"][-1] == "26%"
    assert rows["AUROC entropy"][-1] == "–"
    assert rows["within: history"][-3:] == [".53", "[.49,", ".57]"]
    assert rows["AUROC all"][-3:] == [".60", "[.56,", ".64]"]


@pytest.mark.parametrize(
    ("name", "difference", "says"),
    [
        ("chat", (0.2, 0.4), "history leads, as on ShareGPT in the paper: holds;"),
        ("chat:evaluation", (-0.4, -0.2), "history leads, as on ShareGPT in the paper: does not hold;"),
        ("runs/GSM8K.npz:calibration", (-0.4, -0.2), "entropy leads, as on GSM8K in the paper: holds;"),
        ("math", (-0.1, 0.4), "entropy leads, as on GSM8K in the paper: is not decided;"),
        ("humaneval", (0.1, 0.4), "entropy leads, as on HumanEval in the paper: does not hold;"),
    ],
)
def test_a_claim_of_the_paper_is_judged_by_the_interval(task, name, difference, says):
    sentence = verdicts({name: task(difference=difference)})[0]
    assert sentence.startswith(f"{name}: {says}")
    assert (
        "r of history .50 [.46, .54] (accept_ema_16) against entropy -.20 [-.24, -.16] (base_entropy)"
        in sentence
    )
    assert "AUROC .58 [.54, .62] against –" in sentence
    assert "strongest feature is accept_ema_16 (history), .50 [.46, .54]" in sentence


def test_a_task_that_the_paper_has_not_is_told_without_a_claim(task):
    sentence = verdicts({"stories": task()})[0]
    assert "paper" not in sentence
    assert "r of history .50" in sentence
    assert "does not vary" in verdicts({"x": dataclasses.replace(task(), lead=None)})[0]


def test_the_range_of_the_auroc(task):
    tasks = {"chat": task(auroc=0.6), "math": task(auroc=0.72), "stories": task(auroc=0.5)}
    last = verdicts(tasks)[-1]
    assert "does not hold, whole intervals inside on 1 of 3 (chat .60 [.56, .64], math .72" in last
    assert "holds, whole intervals inside on 1 of 1" in verdicts({"chat": task(auroc=0.6)})[-1]
    # .52 to .60: neither inside nor outside.
    assert "is not decided, whole intervals inside on 0 of 1" in verdicts({"chat": task(auroc=0.56)})[-1]
