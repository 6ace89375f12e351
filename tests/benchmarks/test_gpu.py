import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from benchmarks.gpu import Gpu, measure_gpu, summary
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import default_bank

SMALL = {"device": "cpu", "dtype": "float32", "contexts": (16, 40), "repeats": 1, "copy_megabytes": 1}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    out = tmp_path_factory.mktemp("gpu") / "here.json"
    measure_gpu(Gpu(out=out, size="tiny", nodes=(5, 127), **SMALL))
    return CostTable.load(out)


def test_the_table_prices_the_default_bank(table):
    assert table.contexts.tolist() == [16, 40]
    assert {tree.name: len(tree) for tree in table.trees}["127 nodes"] == 127
    assert [tree.depth for tree in table.trees if "to depth" in tree.name] == [1, 2, 3]
    seconds = table.at(default_bank(), np.array([16, 40])).seconds
    assert seconds.shape == (len(default_bank()), 2)
    assert (seconds > 0).all()
    assert (table.draft_seconds + table.verify_seconds <= table.upper).all()
    assert table.manifest["model"] == "tiny with random weights"
    assert "not on their values" in table.manifest["gpu"]["note"]


def test_the_floor_grows_with_the_context(table):
    extra = table.manifest["gpu"]
    near, far = extra["floor_seconds"]
    # Two layers and the prefix layer: keys and values of 24 tokens more, 32 numbers each, in float32.
    assert (far - near) * extra["copy_bytes_per_second"] == pytest.approx(24 * 3 * 2 * 32 * 4)
    assert len(extra["switching"]) == len(extra["eager_autoregressive_seconds"]) == 2
    assert len(extra["staged"]) == 3
    assert all(len(own) == 2 and min(own) > 0 for own in extra["staged"].values())


def test_the_summary_divides_by_the_autoregressive_step(table):
    console = Console(width=120, record=True, file=StringIO())
    console.print(summary(table))
    text = console.export_text()
    step = table.seconds[0]
    assert len(table.trees[0]) == 0
    k = [tree.name for tree in table.trees].index("hydra-default")

    def numbers(label):
        line = next(line for line in text.splitlines() if label in line)
        return [float(x) for x in re.findall(r"\d+\.\d+", line.split(label)[1])][:2]

    assert numbers("verification of 64 rows") == pytest.approx(table.verify_seconds[k] / step, abs=1e-3)
    assert numbers("its drafting") == pytest.approx(table.draft_seconds[k] / step, abs=1e-3)
    by_stages = table.manifest["gpu"]["staged"]["decided on the device"]
    assert numbers("staged step, decided on the device") == pytest.approx(by_stages / step, abs=1e-3)
    floor = np.array(table.manifest["gpu"]["floor_seconds"])
    assert numbers("autoregressive step ÷ floor") == pytest.approx(step / floor, abs=1e-3)


def test_real_weights_and_contexts_beyond_their_positions(tiny_files, tmp_path):
    real = {"model": tiny_files.model, "heads": tiny_files.heads, "nodes": ()}
    table = measure_gpu(Gpu(out=tmp_path / "real.json", **(SMALL | real | {"contexts": (9, 5000)})))
    assert table.manifest["model"] == tiny_files.model
    # 512 positions, less the largest tree with its root, and 3 steps of 5 tokens.
    assert table.contexts.tolist() == [9, 512 - 64 - 15]


def test_what_cannot_be_measured_is_refused(tmp_path):
    config = {"out": tmp_path / "x.json", "size": "tiny"} | SMALL
    with pytest.raises(ValueError, match=r"contexts \(0,\): expected 1 to \d+ tokens"):
        measure_gpu(Gpu(**(config | {"contexts": (0,)})))
    with pytest.raises(ValueError, match="head architecture 'eagle' is unknown"):
        measure_gpu(Gpu(**config, heads="eagle"))
    assert not list(tmp_path.iterdir())
