from train.ablate_table import ablation_table, markdown

ROW = {"iqm": 1.0374, "low": 1.03, "high": 1.045, "tokens_per_second": 70.0, "oracle": 80.0}


def test_it_is_a_markdown_table():
    rows = [
        ROW | {"cell": "all", "seeds": {"0": 69.0, "1": 71.0, "2": 70.5}},
        ROW | {"cell": "[base]", "seeds": {"0": 60.0}, "low": None, "high": None},
    ]
    head, rule, *body = markdown(ablation_table("features", rows)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *body)]
    assert cells == [
        ["features", "x static", "95 %", "tok/s", "worst", "best", "oracle"],
        ["all", "1.037", "1.030 to 1.045", "70.00", "69.00", "71.00", "80.00"],
        ["[base]", "1.037", "–", "70.00", "60.00", "60.00", "80.00"],
    ]
    assert set(rule) == {"|", "-"}
    assert rule.count("|") == head.count("|")
