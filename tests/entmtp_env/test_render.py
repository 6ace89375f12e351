import re

import pytest

from entmtp_env.decoding import Step
from entmtp_env.models import load_pretrained
from entmtp_env.render import render_ansi


def step(*tokens):
    return Step(list(tokens), len(tokens) - 1, None, "", 0.0, 0.0, 0.0, 0.0, 0.1)


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def decode(tokens):
    return "".join(chr(t) for t in tokens)


def test_the_text_is_whole_and_coloured_by_step():
    steps = [step(72), step(101, 108), step(108, 111, 33)]
    shown = render_ansi(decode, steps, "chain-2", 6, 0.3)
    assert plain(shown).splitlines()[0] == "Hello!"
    colours = re.findall(r"\x1b\[38;5;(\d+)m([A-Za-z!]+)", shown)
    assert [text for _, text in colours] == ["H", "el", "lo!"]
    assert len({colour for colour, _ in colours}) == 3


def test_a_character_of_several_tokens_is_shown_with_the_last_of_them():
    steps = [step(*token) for token in (b"a", "😀".encode()[:1], "😀".encode()[1:3], "😀".encode()[3:], b"!")]
    shown = render_ansi(lambda tokens: bytes(tokens).decode(errors="replace"), steps, "t", 9, 1.0)
    assert plain(shown).splitlines()[0] == "a😀!"
    pieces = re.findall(r"\x1b\[38;5;\d+m([^\x1b]*)", shown.splitlines()[0])
    assert pieces == ["a", "", "", "😀", "!"]


@pytest.mark.model
def test_an_emoji_of_the_default_model_is_whole():
    tokenizer = load_pretrained("smollm2").tokenizer
    text = "Grüße 🦙, née 日本"
    tokens = tokenizer.encode(text)
    assert any("\ufffd" in tokenizer.decode(tokens[:end]) for end in range(len(tokens)))
    shown = render_ansi(tokenizer.decode, [step(token) for token in tokens], "t", len(tokens), 1.0)
    assert plain(shown).splitlines()[0] == text


def test_the_status_line_has_tree_tokens_and_throughput():
    status = plain(render_ansi(decode, [step(65)], "chain-2", 30, 1.5)).splitlines()[-1]
    assert "tree chain-2" in status
    assert "30 tokens" in status
    assert "20.0 tok/s" in status


@pytest.mark.parametrize("drafts", [5, 9])
def test_more_accepted_drafts_than_colours(drafts):
    assert plain(render_ansi(decode, [step(*[65] * (drafts + 1))], "t", 1, 1.0)).startswith(
        "A" * (drafts + 1)
    )


def test_nothing_yet():
    assert "0 tokens | 0.0 tok/s" in plain(render_ansi(decode, [], "", 0, 0.0))
