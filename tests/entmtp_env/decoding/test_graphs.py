import pytest
import torch

from entmtp_env.decoding import GreedyRule, SampleRule, TypicalRule
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.graphs import GraphBank, call_directly
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from tests.entmtp_env.decoding.tape import Tapes
from tests.tiny import tiny_backbone, tiny_heads

CHAIN, WIDE = DraftTree.chain(3), DraftTree("wide", ((0,), (1,), (0, 0), (0, 1)))
PIECES = ("draft", "verify", "accept", "commit", "advance")


@pytest.fixture
def tapes():
    return Tapes()


@pytest.fixture
def decoder(tapes):
    backbone = tiny_backbone()
    return GraphDecoder(backbone, tiny_heads(backbone), capacity=128, bucket_rows=32, capture=tapes)


def name(function):
    """What was captured; a bucket is bound to it."""
    own = getattr(function, "func", function)
    return own.__name__


@pytest.mark.parametrize(
    ("rows", "bucket"), [(1, 32), (32, 32), (33, 64), (64, 64), (65, 96), (97, 100), (100, 100)]
)
def test_a_bucket_is_the_smallest_that_holds_the_rows(rows, bucket):
    bank = GraphBank(None, None, None, capacity=100, bucket_rows=32, capture=call_directly)
    assert bank.bucket(rows) == bucket


def test_what_cannot_be_a_bucket_is_refused():
    bank = GraphBank(None, None, None, capacity=100, bucket_rows=32, capture=call_directly)
    with pytest.raises(ValueError, match="101 KV rows exceed the capacity of 100"):
        bank.bucket(101)
    with pytest.raises(ValueError, match="bucket_rows must be at least 1, got 0"):
        GraphBank(None, None, None, capacity=100, bucket_rows=0, capture=call_directly)


def test_a_step_replays_its_pieces_in_order(decoder, tapes):
    decoder.start([1, 3], max_new_tokens=64)
    decoder.step(WIDE)
    assert [name(tapes.captured[i]) for i in tapes.replayed] == [*PIECES]
    decoder.step(CHAIN)
    decoder.step(WIDE)
    assert [name(tapes.captured[i]) for i in tapes.replayed] == [*PIECES] * 3
    assert tapes.replayed[10:] == tapes.replayed[:5]
    assert set(tapes.replayed[:5]) & set(tapes.replayed[5:10]) == {tapes.replayed[4]}


def test_a_graph_is_captured_once_for_tree_bucket_and_rule(decoder, tapes):
    def captured_by(prompt, tree, rule):
        before = len(tapes.captured)
        decoder.start(prompt, rule, max_new_tokens=64)
        decoder.step(tree)
        return [name(function) for function in tapes.captured[before:]]

    short, long = [1, 3], [5] * 29
    assert captured_by(short, CHAIN, GreedyRule()) == ["advance", "draft", "verify", "commit", "accept"]
    assert captured_by(short, CHAIN, GreedyRule()) == []
    assert captured_by(long, CHAIN, GreedyRule()) == ["verify", "commit"]
    assert captured_by(short, WIDE, GreedyRule()) == ["draft", "verify", "commit", "accept"]
    assert captured_by(short, CHAIN, SampleRule(0.5)) == ["accept"]
    assert captured_by(short, CHAIN, SampleRule(0.5)) == []
    assert captured_by(short, CHAIN, SampleRule(0.6)) == ["accept"]
    assert captured_by(short, CHAIN, TypicalRule()) == ["accept"]
    assert captured_by(short, CHAIN, TypicalRule(alpha=0.2)) == ["accept"]


def test_the_bucket_follows_the_length(decoder, tapes):
    decoder.eos_token_ids = frozenset()
    decoder.start([1] * 20, max_new_tokens=40)
    lengths = {}
    while not decoder.finish_reason:
        length = decoder.length
        decoder.step(AUTOREGRESSIVE)
        verify = next(i for i in tapes.replayed[-5:] if name(tapes.captured[i]) == "verify")
        lengths.setdefault(tapes.captured[verify].args, []).append(length)
    # One row for the root: behind 31 tokens it still fits into 32 rows.
    assert lengths == {(32,): [*range(20, 32)], (64,): [*range(32, 60)]}


def test_memory_stays_where_it_is(decoder):
    def addresses():
        return {key: t.data_ptr() for key, t in vars(decoder._buffers).items() if torch.is_tensor(t)}

    before = addresses()
    assert len(before) >= 12
    for rule in (GreedyRule(), SampleRule()):
        decoder.start([1, 3], rule, max_new_tokens=30)
        while not decoder.finish_reason:
            decoder.step(WIDE)
    assert addresses() == before
    assert decoder._buffers.kv.data_ptr() == decoder._cache._data.data_ptr()
