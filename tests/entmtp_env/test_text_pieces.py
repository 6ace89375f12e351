import itertools

from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.text_pieces import common_length, text_pieces


def decode(ids):
    return bytes(ids).decode(errors="replace")


@given(st.text(min_size=1, max_size=12), st.data())
def test_pieces_join_to_the_text_and_cut_no_character(text, data):
    ids = list(text.encode())
    cuts = data.draw(st.sets(st.integers(1, len(ids))))
    ends = [0, *sorted(cuts - {len(ids)}), len(ids)]
    steps = [ids[a:b] for a, b in itertools.pairwise(ends)]
    pieces = text_pieces(decode, steps, text)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        done = 0
        for end, piece in zip(ends[1:], pieces, strict=True):
            done += len(piece)
            # All characters whose last byte is there, and no others.
            assert text[:done] == bytes(ids[:end]).decode(errors="ignore")


@given(st.text("ab"), st.text("ab"))
def test_common_length(one, other):
    n = common_length(one, other)
    assert one[:n] == other[:n]
    assert n == min(len(one), len(other)) or one[n] != other[n]


def test_no_steps_have_no_pieces():
    assert text_pieces(decode, [], "") == []
