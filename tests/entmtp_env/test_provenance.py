import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from entmtp_env import provenance
from entmtp_env.provenance import describe_code, describe_machine, describe_run


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


@pytest.fixture
def describe_copy(tmp_path, monkeypatch):
    """Describes the code of a copy of this package in a folder, where ``policies`` is one file."""
    root = tmp_path / "a project"
    (root / "entmtp_env").mkdir(parents=True)
    shutil.copy(provenance.__file__, root / "entmtp_env")
    (root / "policies" / "deep").mkdir(parents=True)
    (root / "policies" / "deep" / "static.py").write_text("one = 1")
    (root / "eval.py").write_text("plot = 1")
    monkeypatch.setattr(provenance, "_FOLDER", root / "entmtp_env")
    return root, describe_code.__wrapped__


@pytest.fixture
def git(describe_copy, monkeypatch):
    if not shutil.which("git"):
        pytest.skip("no git")
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)

    def run(*words):
        person = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ("git", *person, *words)
        return subprocess.run(
            command, cwd=describe_copy[0], check=True, capture_output=True, text=True
        ).stdout

    run("init", "-q")
    return run


def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed(describe_copy, git):
    root, describe = describe_copy
    git("add", ".")
    git("commit", "-q", "-m", "first")
    first = describe()
    assert first == {
        "fingerprint": first["fingerprint"],
        "commit": git("rev-parse", "HEAD").strip(),
        "changed": False,
    }
    (root / "untracked.txt").touch()
    assert describe() == first
    (root / "eval.py").write_text("plot = 2")
    assert describe() == first | {"changed": True}
    git("commit", "-q", "-a", "-m", "second")
    assert describe() == first | {"commit": git("rev-parse", "HEAD").strip()}
    (root / "policies" / "deep" / "static.py").write_text("one = 2")
    assert describe()["fingerprint"] != first["fingerprint"]


def test_a_repository_around_an_installation_is_not_its_checkout(describe_copy, git, monkeypatch):
    root, describe = describe_copy
    (root / ".gitignore").write_text("entmtp_env")
    git("add", ".")
    git("commit", "-q", "-m", "of the user")
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda self, name: None)
    assert describe().keys() == {"fingerprint"}


@pytest.mark.parametrize(
    ("record", "commit"),
    [
        ('{"url": "https://x/y", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}', {"commit": "c0ffee"}),
        ('{"url": "file:///y", "dir_info": {"editable": true}}', {}),
        ("[]", {}),
        ("{", {}),
        (None, {}),
    ],
)
def test_without_git_the_record_of_the_installation_is_asked(describe_copy, monkeypatch, record, commit):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda self, name: record)
    described = describe_copy[1]()
    assert described == {"fingerprint": described["fingerprint"]} | commit


def test_the_code_is_described_once_and_in_every_run(monkeypatch):
    first = describe_code()
    monkeypatch.setattr(provenance, "_git", None)
    assert describe_run()["code"] == first
    assert len(first["fingerprint"]) == 16
