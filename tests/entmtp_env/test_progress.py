import io
import threading

import pytest
from rich.console import Console

import entmtp_env.progress
from entmtp_env.progress import progress_bar


def output(terminal, steps=5):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    threads = threading.active_count()
    with progress_bar(console) as bar:
        task = bar.add_task("baking", total=steps)
        for _ in range(steps):
            bar.advance(task)
            assert threading.active_count() == threads
    return console.file.getvalue()


@pytest.mark.parametrize(("every", "counts"), [(0.0, [1, 2, 3, 4, 5, 5]), (3600.0, [1, 5])])
def test_a_log_gets_a_line_now_and_then(monkeypatch, every, counts):
    monkeypatch.setattr(entmtp_env.progress, "_LINE_EVERY", every)
    lines = [line for line in output(terminal=False).splitlines() if line]
    assert [line.split()[:2] for line in lines] == [["baking", f"{count}/5"] for count in counts]
    assert all("left" in line and "\x1b" not in line for line in lines)


@pytest.mark.parametrize(("every", "frames"), [(0.0, [1, 2, 3, 4, 5]), (3600.0, [1, 5])])
def test_a_terminal_gets_one_bar_redrawn(monkeypatch, every, frames):
    monkeypatch.setattr(entmtp_env.progress, "_REDRAW_EVERY", every)
    text = output(terminal=True)
    assert all(f"{count}/5" in text for count in frames)
    assert ("3/5" in text) == (3 in frames)
    assert text.count("\n") == 1
