import gzip
import json
import random

import pytest

import train.text_log
from train.text_log import TextLog
from train.texts import read_texts

RNG = random.Random(0)


def row(number, size=5):
    return {"p": [1, number], "g": [RNG.randrange(49152) for _ in range(size)], "id": f"mine/{number}#0"}


ROWS = [row(n, size=2 + n % 4) for n in range(29)]


def write(path, rows):
    with TextLog(path) as log:
        for each in rows:
            log.add(each)


def read(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def sizes(path, rows):
    """Size of the file after each row, and at the end."""
    seen = []
    with TextLog(path) as log:
        for each in rows:
            log.add(each)
            seen.append(path.stat().st_size)
    return [*seen, path.stat().st_size]


def test_a_chunk_of_eight_reaches_the_file_whole(tmp_path):
    path = tmp_path / "new" / "texts.jsonl.gz"
    seen = sizes(path, ROWS)
    assert [size > before for before, size in zip([0, *seen], seen, strict=False)] == [
        n in (8, 16, 24, 30) for n in range(1, 31)
    ]
    data = path.read_bytes()
    for count in (8, 16, 24, 29):
        assert len(gzip.decompress(data[: seen[count - 1]]).splitlines()) == count - count % 8
    assert read(path) == ROWS
    assert [list(t.reply) for t in read_texts(path)] == [r["g"] for r in ROWS]


def test_slow_texts_do_not_wait_for_eight(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(train.text_log.time, "monotonic", lambda: now)
    path = tmp_path / "texts.jsonl.gz"
    with TextLog(path) as log:
        counts = []
        for number, now in enumerate([4.0, 9.9, 10.0, 19.9, 20.0, 21.0]):  # noqa: B007
            log.add(ROWS[number])
            counts.append(len(read(path)) if path.stat().st_size else 0)
    assert counts == [0, 0, 3, 3, 5, 5]
    assert read(path) == ROWS[:6]


def test_a_file_cut_anywhere_is_completed_without_loss_or_repetition(tmp_path, monkeypatch):
    monkeypatch.setattr(train.text_log.os, "fsync", lambda handle: None)
    path = tmp_path / "texts.jsonl.gz"
    seen = sizes(path, ROWS)
    data = path.read_bytes()
    for cut in range(seen[16], len(data) + 1):
        whole = max(count for count in (16, 24, 29) if seen[count] <= cut)
        path.write_bytes(data[:cut])
        log = TextLog(path)
        assert list(log.written.items()) == [(r["id"], len(r["g"])) for r in ROWS[:whole]]
        assert path.stat().st_size == seen[whole]
        with log:
            for each in ROWS:
                if each["id"] not in log.written:
                    log.add(each)
        assert read(path) == ROWS


def test_a_member_larger_than_a_block_is_read(tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    rows = [row(0), *(row(n, 40_000) for n in range(1, 12)), row(12)]
    write(path, rows)
    assert path.stat().st_size > 2 * train.text_log._BLOCK
    assert list(TextLog(path).written) == [r["id"] for r in rows]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_is_not_repeated(tmp_path, monkeypatch, error):
    path = tmp_path / "texts.jsonl.gz"

    def interrupt(handle):
        raise error

    monkeypatch.setattr(train.text_log.os, "fsync", interrupt)
    with pytest.raises(error):
        write(path, ROWS)
    assert read(path) == ROWS[:8]


def test_an_error_elsewhere_loses_no_finished_text(tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    with pytest.raises(KeyError, match="id"):
        write(path, [ROWS[0], {"g": [1, 2]}])
    assert read(path) == ROWS[:1]


def test_damage_is_named_and_nothing_is_cut(tmp_path):
    path = tmp_path / "texts.jsonl.gz"
    seen = sizes(path, ROWS)
    data = path.read_bytes()
    broken = bytearray(data)
    broken[seen[16] - 6] ^= 1
    foreign = [gzip.compress(text) for text in (b"no JSON\n", b"[1]\n", b'{"p": [1], "g": [2]}\n', b"\xff\n")]
    cases = [(bytes(broken), seen[8]), (b'{"p": [1], "g": [2, 3]}\n', 0), (data + b"\0" * 20, len(data))]
    cases += [(data + member, len(data)) for member in foreign]
    for content, good in cases:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"is damaged behind byte {good} .*truncate --size={good} "):
            TextLog(path)
        assert path.read_bytes() == content
