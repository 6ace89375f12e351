import threading

from eval import progress


def test_a_log_gets_a_line_now_and_then_and_the_last(capsys, monkeypatch):
    clock = iter([0.0, 4.0, 12.0, 15.0, 20.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.episode_progress(4) as advance:
        for _ in range(4):
            advance("chat")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "chat: 2/4 episodes, 0:00:12 elapsed, 0:00:12 left",
        "chat: 4/4 episodes, 0:00:20 elapsed, 0:00:00 left",
    ]


def test_a_terminal_gets_a_bar_without_a_thread(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    threads = threading.active_count()
    with progress.episode_progress(3) as advance:
        for _ in range(3):
            advance("math")
            assert threading.active_count() == threads
    out, err = capsys.readouterr()
    assert out == ""
    assert "math" in err
    assert "3/3" in err
