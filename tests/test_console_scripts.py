"""The commands that an installation puts on the path."""

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from tests.recordings import random_recording

ROOT = Path(__file__).parents[1]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
POLICY = """
from policies import SchedulerPolicy

class Mine(SchedulerPolicy):
    def act(self, observations, memory):
        return observations.argmin(axis=1) * 0, memory
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script, made as installers make it, in a folder with files named as our packages are."""
    for name in ("train", "eval", "policies"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the file of the user')")
    (tmp_path / "my_policy.py").write_text(POLICY)
    scripts = tmp_path / "bin"
    scripts.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def call(name, *arguments):
        module, _, function = SCRIPTS[name].partition(":")
        script = scripts / name
        script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return call


def test_a_policy_in_the_current_folder_is_found_and_hides_nothing(run, tmp_path):
    random_recording(np.random.default_rng(0), texts=2, depth=4, longest=20, cap=20).save(tmp_path / "r.npz")
    settings = ("--costs", "analytic:base=1", "--bootstrap-samples", "10", "--out", "results")
    done = run("entmtp-eval", "replay", "--recordings", "r.npz", "--policies", "my_policy:Mine", *settings)
    assert done.returncode == 0, done.stderr
    assert "my_policy:Mine" in done.stdout
    assert (tmp_path / "results" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("entmtp-eval", ("report", "nowhere")),
        ("entmtp-train", ("bank", "--candidates", "no.json", "--out", "bank.json")),
    ],
)
def test_a_mistake_is_exit_2(run, name, arguments):
    done = run(name, *arguments)
    assert done.returncode == 2
    assert "error" in done.stderr
    assert "the file of the user" not in done.stderr
