"""The command lines of the guides: they parse, and what they read is there when their turn comes."""

import re
import shlex
from pathlib import Path

import pytest

import eval.__main__
import train.__main__

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = ("NEW_MODEL", "TREES", "STAGED", "HEADS", "LEARNED")
COMMANDS = {"train": train.__main__._COMMANDS, "eval": eval.__main__._COMMANDS}
MAIN = {"train": train.__main__.main, "eval": eval.__main__.main}


def commands(guide):
    """The commands of a guide, in order, each as a list of words behind ``python -m``."""
    blocks = re.findall(
        r"^```\n(.*?)^```", (DOCS / f"{guide}.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    text = "".join(blocks).replace("\\\n", " ").replace("$RUN", "runs/own").replace("$MODEL", "own/model")
    lines = [line for line in text.splitlines() if line.startswith("python -m ")]
    return [shlex.split(line, comments=True)[2:] for line in lines]


@pytest.fixture
def parse(monkeypatch):
    """The configuration that a command line makes."""
    made = []
    for kind in list(COMMANDS["train"]):
        monkeypatch.setitem(COMMANDS["train"], kind, made.append)
    for name, (kind, _) in list(COMMANDS["eval"].items()):
        monkeypatch.setitem(COMMANDS["eval"], name, (kind, made.append))

    def run(words):
        monkeypatch.setattr("sys.argv", words)
        assert MAIN[words[0]]() in (0, None), " ".join(words)
        return made.pop()

    return run


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_parses_and_reads_what_those_before_it_wrote(guide, parse):
    written = []
    assert commands(guide)
    for words in commands(guide):
        out = getattr(parse(words), "out", None)
        for path in re.findall(r"runs/[\w./-]+", " ".join(words)):
            there = any(path == own or path.startswith(f"{own}/") for own in written)
            assert there or path == str(out), f"{guide}: {' '.join(words)} reads {path}, which nothing wrote"
        written.append(str(out))
