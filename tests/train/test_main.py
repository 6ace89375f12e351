import pytest

from train.__main__ import _COMMANDS, main
from train.record import Record


@pytest.mark.parametrize(
    ("args", "texts"),
    [
        ([], ["distill", "heads", "calibrate", "train heads"]),
        (["distill"], ["--prompts", "--out", "--temperatures", "Taken in turn", "math:calibration"]),
        (["heads"], ["--texts", "--out", "--arch", "--draft-vocab-size", "Number of heads"]),
        (["calibrate"], ["--prompts", "--num-prompts", "--policies", "ema-ladder", "Token cap"]),
        (["record"], ["--prompts", "--out", "--acceptance", "--candidates", "goes on where it stopped"]),
        (["costs"], ["--out", "--contexts", "--repeats", "Keep the machine idle"]),
        (["export"], ["--recordings", "--policies", "--dataset-id", "Minari"]),
        (["trees"], ["--method", "--source", "--budget", "Algorithm 1"]),
        (["value"], ["--recordings", "--held-out", "--methods"]),
        (["rl"], ["--recordings", "--held-out", "--ppo.gamma", "decode/regret"]),
        (["bank"], ["--candidates", "--size", "--swaps", "oracle"]),
        (["ablate"], ["--what", "--cells", "--seeds", "--ppo.gamma", "interquartile"]),
        (["stages"], ["--recordings", "--out", "--expand", "--budgets"]),
        (["publish"], ["--heads", "--repository", "model card"]),
    ],
)
def test_help(capsys, args, texts):
    with pytest.raises(SystemExit) as stop:
        main([*args, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in texts)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["distill", "--prompts", "absent.jsonl", "--out", "x.jsonl.gz"], "absent.jsonl"),
        (["distill", "--prompts", "humaneval", "--out", "x.jsonl.gz"], "'humaneval'"),
        (["heads", "--texts", "absent.jsonl", "--out", "x.safetensors"], "no texts at absent.jsonl"),
        (["calibrate", "--prompts", "absent.jsonl"], "absent.jsonl"),
        (["calibrate", "--acceptance", "hopeful"], "hopeful"),
        (["calibrate", "--num-prompts", "-1"], "num_prompts=-1"),
        (["calibrate", "--scores", "luck"], "'luck'"),
    ],
)
def test_a_fault_is_one_line(capsys, monkeypatch, tmp_path, args, message):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m train: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not list(tmp_path.iterdir())


def stopping(error):
    def stop(config):
        raise error

    return stop


def test_too_little_memory_is_one_line(capsys, monkeypatch):
    shortage = MemoryError("loading the model 'big': no memory is left on the device")
    monkeypatch.setitem(_COMMANDS, Record, stopping(shortage))
    assert main(["record", "--prompts", "chat", "--out", "x.npz"]) == 2
    assert capsys.readouterr().err == f"python -m train: error: {shortage}\n"


def test_an_interruption_says_how_to_go_on(capsys, monkeypatch):
    monkeypatch.setitem(_COMMANDS, Record, stopping(KeyboardInterrupt()))
    assert main(["record", "--prompts", "chat", "--out", "x.npz"]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert "interrupted; run the same command again" in line


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["bake"],
        ["distill"],
        ["distill", "--prompts", "math:calibration", "--out", "x.jsonl"],
        ["heads"],
        ["calibrate", "--quantiles", "2"],
    ],
)
def test_a_wrong_command_line_exits_with_2(capsys, args):
    try:
        status = main(args)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
