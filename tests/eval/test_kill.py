"""An evaluation that is killed, or whose disk is full, loses the text it was at and no more."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from eval import results
from eval.compare import compare
from eval.stored import load_results
from policies import SchedulerPolicy
from tests.eval.decoder_env import DecoderEnv

ROWS, PROMPTS = 4, 6


class Slow(SchedulerPolicy):
    """Gives whoever wants to kill it the time to."""

    def act(self, observations, memory):
        time.sleep(0.02)
        return [3] * len(observations), memory


@pytest.fixture(autouse=True)
def one_thread():
    """A forked child has one, and a comparison goes on with as many as it began with."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_child(work):
    """The exit status of a forked process that does ``work``; negative is the signal that ended it."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def episodes(folder):
    """What does not depend on the clock, and the actions, in the order of the file."""
    return [
        (
            own.prompts,
            own.run.policy,
            own.run.seed,
            own.run.episode.prompt_id,
            own.run.episode.text,
            *(step.action for step in own.run.episode.steps),
        )
        for own in load_results(folder).runs
    ]


class DyingFile:
    """A file whose process is killed when a part of its n-th block is on the disk."""

    def __init__(self, file, block, part):
        self.file, self.left, self.part = file, block, part

    def write(self, text):
        self.left -= 1
        if not self.left:
            self.file.write(text[: int(self.part * len(text))])
            self.file.flush()
            die()
        self.file.write(text)

    def __getattr__(self, name):
        return getattr(self.file, name)


def dying_writer(name, part, block=8):
    def patch(patcher):
        enter = results.ResultFolder.__enter__

        def begin(self):
            enter(self)
            setattr(self, name, DyingFile(getattr(self, name), block, part))
            return self

        patcher.setattr(results.ResultFolder, "__enter__", begin)

    return patch


def dying_step(patcher):
    """In the middle of the eighth text."""
    reset, step, begun = DecoderEnv.reset, DecoderEnv.step, []

    def count(self, **settings):
        begun.append(1)
        return reset(self, **settings)

    def step_or_die(self, action):
        # The first text is the one that warms up.
        if len(begun) == 9 and self.tokens > 5:
            die()
        return step(self, action)

    patcher.setattr(DecoderEnv, "reset", count)
    patcher.setattr(DecoderEnv, "step", step_or_die)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    "patch",
    [
        dying_step,
        *(dying_writer(name, part) for name in ("_steps", "_episodes") for part in (0, 0.3, 0.999)),
    ],
)
def test_a_killed_comparison_goes_on_as_if_nothing_had_been(config, tmp_path, monkeypatch, patch):
    settings = config()
    compare(dataclasses.replace(settings, out=tmp_path / "whole"))
    expected = episodes(tmp_path / "whole")

    def work():
        patch(monkeypatch)
        compare(settings)

    assert in_a_child(work) == -signal.SIGKILL
    kept = (settings.out / "episodes.jsonl").read_bytes().splitlines(keepends=True)[:7]
    assert episodes(settings.out) == expected[:7]
    compare(dataclasses.replace(settings, resume=True))
    assert (settings.out / "episodes.jsonl").read_bytes().startswith(b"".join(kept))
    assert episodes(settings.out) == expected
    assert len(expected) == ROWS * PROMPTS


def test_a_full_disk_ends_a_comparison_that_can_be_resumed(config, tmp_path):
    resource = pytest.importorskip("resource")
    settings = config()
    compare(dataclasses.replace(settings, out=tmp_path / "whole"))
    expected = episodes(tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The larger of the two files fills the disk in the middle of a line.
    room = (tmp_path / "whole" / "steps.jsonl").stat().st_size // 2
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match=f"no room is left to write {settings.out}: free some space"):
            compare(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    whole = episodes(settings.out)
    assert 2 < len(whole) < len(expected)
    assert whole == expected[: len(whole)]
    compare(dataclasses.replace(settings, resume=True))
    assert episodes(settings.out) == expected


@pytest.mark.slow
def test_the_command_on_a_real_model_is_killed_from_outside(tiny_files, tmp_path):
    out, spec = tmp_path / "results", f"{__name__}:Slow"
    options = {
        key.replace("_", "-"): value for key, value in tiny_files.kwargs.items() if key != "prompts"
    } | {"policies": spec, "prompts": tiny_files.prompts, "bootstrap-samples": 50, "out": out}
    command = [sys.executable, "-m", "eval", "compare"]
    command += [word for key, value in options.items() for word in (f"--{key}", str(value))]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, end = out / "episodes.jsonl", time.monotonic() + 240
    while not (path.exists() and path.read_bytes().count(b"\n") >= 4):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    kept = episodes(out)
    assert 4 <= len(kept) < 3 * PROMPTS
    subprocess.run([*command, "--resume"], env=environ, check=True, capture_output=True)
    assert episodes(out)[: len(kept)] == kept
    assert len(episodes(out)) == 3 * PROMPTS
    assert json.loads((out / "manifest.json").read_text())["resumed"]
    texts = {(own[3], own[4]) for own in episodes(out)}
    assert len(texts) == PROMPTS
