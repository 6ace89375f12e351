import gzip
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.texts import Text, first_own_token, frequent_tokens, read_texts, texts_fingerprint

TEXTS = [Text((1, 2), (3, 4, 5)), Text((6,), (7, 8)), Text((9, 9, 9), (0, 1, 2, 3))]


def lines(texts):
    return "".join(json.dumps({"p": t.prompt, "g": t.reply}) + "\n" for t in texts)


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.gz"])
def test_texts_come_back_in_order(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(lines(TEXTS).encode()) if name.endswith("gz") else lines(TEXTS).encode())
    assert read_texts(path) == TEXTS
    assert read_texts(str(path))[0].tokens == (1, 2, 3, 4, 5)


def test_texts_that_teach_nothing_are_left_out(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text(lines([Text((), (1, 2)), Text((1,), (2,)), Text((1,), ()), TEXTS[0]]))
    assert read_texts(path) == TEXTS[:1]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "3",
        "[]",
        '{"p": [1]}',
        '{"p": [1], "g": 3}',
        '{"p": [1], "g": [2, "x"]}',
        '{"p": [1], "g": [2, 1.5]}',
        '{"p": [1], "g": [2, true]}',
        '{"p": [1], "g": [2, -1]}',
        '{"p": "12", "g": [1, 2]}',
        '{"p": [1], "g": [2',
    ],
)
def test_a_foreign_line_is_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_text(lines(TEXTS) + line + "\n" + lines(TEXTS))
    with pytest.raises(ValueError, match=r"texts\.jsonl, line 4: expected .*token ids"):
        read_texts(path)


def test_damaged_files_are_named(tmp_path):
    whole = gzip.compress(lines(TEXTS * 50).encode())
    path = tmp_path / "texts.jsonl.gz"
    for content in (whole[:-20], b"no gzip", whole[:20] + b"\xff\xff\xff\xff" + whole[24:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"texts\.jsonl\.gz is damaged .*the same command again"):
            read_texts(path)


def test_a_missing_file_says_what_to_give(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no texts at .*absent\.jsonl"):
        read_texts(tmp_path / "absent.jsonl")


def test_the_fingerprint_knows_order_and_boundaries():
    moved = [Text((1, 2, 3), (4, 5)), *TEXTS[1:]]
    assert texts_fingerprint(TEXTS) == texts_fingerprint(list(TEXTS))
    assert len({texts_fingerprint(t) for t in (TEXTS, TEXTS[::-1], TEXTS[:2], moved)}) == 4


@given(
    shared=st.lists(st.integers(0, 3), max_size=4),
    ends=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
)
def test_prompts_begin_to_differ_behind_what_all_share(shared, ends):
    prompts = [(9, *shared, *end) for end in ends]
    first = first_own_token([Text(prompt, (1, 2)) for prompt in prompts])
    assert len({prompt[:first] for prompt in prompts}) == 1
    assert any(len(p) == first for p in prompts) or len({prompt[: first + 1] for prompt in prompts}) > 1


def test_prompts_without_a_common_beginning_differ_behind_the_first_token():
    assert first_own_token([Text((1, 2), (3, 4)), Text((5, 2), (3, 4))]) == 1


@settings(deadline=None)
@given(
    replies=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=12), max_size=6),
    size=st.integers(1, 14),
)
def test_the_vocabulary_is_the_most_frequent_reply_tokens(replies, size):
    texts = [Text((11, 11, 11, 11), tuple(reply)) for reply in replies]
    vocab, coverage = frequent_tokens(texts, size, vocab_size=12)
    counts = Counter(token for reply in replies for token in reply)
    assert len(set(vocab)) == len(vocab) == min(size, 12)
    assert vocab == sorted(vocab, key=lambda token: (-counts[token], token))
    outside = set(range(12)) - set(vocab)
    for kept in vocab:
        assert all((-counts[kept], kept) < (-counts[other], other) for other in outside)
    share = sum(counts[token] for token in vocab) / max(1, sum(map(len, replies)))
    assert coverage == pytest.approx(share)
