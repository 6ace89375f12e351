import pytest
from transformers import AutoTokenizer

from entmtp_env.features import TOKEN_SHAPES, root_shape
from entmtp_env.models import load_pretrained
from entmtp_env.token_shapes import TokenShapes
from tests.published import save_sentencepiece


def named(shape):
    return {name for name, is_so in zip(TOKEN_SHAPES, shape, strict=True) if is_so}


@pytest.fixture
def sentencepiece(tmp_path):
    pytest.importorskip("sentencepiece")
    save_sentencepiece(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("piece", "shapes"),
    [
        ("▁the", {"space"}),
        ("▁", {"space"}),
        ("he", {"wordpiece"}),
        (".", {"punctuation"}),
        ("<0x0A>", {"newline"}),
        ("<0x37>", {"digit"}),
        ("</s>", set()),
    ],
)
def test_pieces_keep_the_space_that_sentencepiece_drops_at_the_front(sentencepiece, piece, shapes):
    token = sentencepiece.convert_tokens_to_ids(piece)
    assert named(TokenShapes(sentencepiece)[token]) == shapes


def test_a_word_of_a_tokenizer_of_words_begins_with_a_space(tiny_files):
    tokenizer = load_pretrained(tiny_files.model).tokenizer
    word = tokenizer.convert_tokens_to_ids("w5")
    assert named(TokenShapes(tokenizer)[word]) == {"digit", "space"}


@pytest.mark.model
def test_bytes_are_what_they_are_alone():
    tokenizer = load_pretrained("smollm2").tokenizer
    shapes = TokenShapes(tokenizer)
    for token in range(0, len(tokenizer), 7):
        assert shapes[token] == root_shape(tokenizer.decode([token]))


def test_a_token_is_decoded_once(tiny_files):
    class Counting:
        decoded = 0

        def __init__(self, tokenizer):
            self.encode, self.own = tokenizer.encode, tokenizer

        def decode(self, tokens):
            self.decoded += 1
            return self.own.decode(tokens)

    tokenizer = Counting(load_pretrained(tiny_files.model).tokenizer)
    shapes = TokenShapes(tokenizer)
    for _ in range(3):
        assert shapes[5] == shapes[5]
    assert tokenizer.decoded == 2
