import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from entmtp_env.provenance import describe_machine, describe_run


def test_a_run_is_described_in_plain_json(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "eval", "compare", "--out", "a b"])
    run = json.loads(json.dumps(describe_run()))
    assert run["command"].endswith(" -m eval compare --out 'a b'")
    assert run["libraries"]["torch"] == torch.__version__
    assert run["libraries"]["numpy"] == np.__version__
    assert {"python", "transformers", "gymnasium", "entmtp-env"} <= run["libraries"].keys()
    assert abs((datetime.now(UTC) - datetime.fromisoformat(run["time"])).total_seconds()) < 60


def test_the_machine_is_this_one():
    machine = describe_machine()
    assert machine["processor"]
    assert 1 <= machine["cores"] <= os.cpu_count()
    assert machine["threads"] == torch.get_num_threads()
    assert (machine["accelerator"] is None) == (not torch.cuda.is_available())


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="no /proc/cpuinfo")
def test_the_processor_is_named_as_the_kernel_names_it(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Some CPU: @ 2 GHz\n\nmodel name\t: Other\n"
    monkeypatch.setattr(Path, "read_text", lambda self, **options: text)
    assert describe_machine()["processor"] == "Some CPU: @ 2 GHz"
