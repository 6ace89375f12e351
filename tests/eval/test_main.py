import subprocess
import sys

import pytest

from eval.__main__ import _COMMANDS, main
from eval.compare import Compare
from tests.eval.decoder_env import ENV_ID


@pytest.fixture
def call(monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["eval", *arguments])
        main()

    return run


def test_help_describes_every_option():
    command = [sys.executable, "-m", "eval", "compare", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    for option in (
        "--policies",
        "--prompts",
        "--num-prompts",
        "--baseline",
        "--out",
        "--overwrite",
        "--probe",
    ):
        assert option in done.stdout
    assert "Compare policies on identical prompts" in done.stdout
    assert "after a seeded shuffle" in done.stdout


def test_a_comparison_from_the_command_line(call, decoder, prompt_file, tmp_path, capsys):
    sets = (prompt_file(3), prompt_file(2, "more.jsonl"))
    call(
        *("compare", "--env-id", ENV_ID, "--prompts", *sets, "--max-new-tokens", "16", "--dtype", "float32"),
        *(
            "--policies",
            "static:tree-6x3",
            "tests.eval.test_compare:MyPolicy",
            "--out",
            str(tmp_path / "out"),
        ),
    )
    out, err = capsys.readouterr()
    assert out.count("★ most tokens per second") == 1
    assert out.count("static:tree-6x3") == 2
    assert out.count("MyPolicy") == 2
    assert "20/20" in err
    assert (tmp_path / "out" / "plot.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompts", "nosuch"), "unknown prompt set 'nosuch'"),
        (("--prompts", "missing.jsonl"), "no prompt file missing.jsonl"),
        (("--policies", "threshold:nosuch=1"), "threshold:nosuch=1"),
        (("--bank", "missing.json"), "missing.json"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(call, decoder, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        call("compare", "--env-id", ENV_ID, "--out", str(tmp_path / "out"), *arguments)
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_too_little_memory_is_one_line_and_exit_2(call, monkeypatch, capsys):
    def stop(config):
        raise MemoryError("loading the model 'big': no memory is left on the device")

    monkeypatch.setitem(_COMMANDS, "compare", (Compare, stop))
    with pytest.raises(SystemExit) as exit_:
        call("compare")
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: loading the model 'big': no memory is left on the device\n"


def test_heads_from_the_command_line(call, tiny_files, tmp_path, capsys):
    call(
        *("heads", "--model", tiny_files.model, "--heads", tiny_files.heads, "--prompts", tiny_files.prompts),
        *("--max-new-tokens", "8", "--timing-steps", "0", "--bootstrap-samples", "10", "--dtype", "float32"),
        *("--cache", str(tmp_path / "texts"), "--out", str(tmp_path / "out")),
    )
    assert "τ hydra-default" in capsys.readouterr().out
    assert (tmp_path / "out" / "heads.json").is_file()


def test_existing_results_are_one_line_and_exit_2(call, decoder, tmp_path, capsys):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(SystemExit) as exit_:
        call("compare", "--env-id", ENV_ID, "--out", str(tmp_path))
    assert exit_.value.code == 2
    assert "already holds results" in capsys.readouterr().err
