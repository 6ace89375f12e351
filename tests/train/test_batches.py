import itertools

from hypothesis import given
from hypothesis import strategies as st

import train.batches
from train.batches import epochs
from train.texts import Text

lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(2, 30)), min_size=1, max_size=40)


def texts_of(shapes):
    return [Text((1,) * prompt, (2,) * reply) for prompt, reply in shapes]


def first(count, *args):
    return list(itertools.islice(epochs(*args), count))


@given(shapes=lengths, held_out=st.integers(0, 5), batch_tokens=st.integers(1, 100), seed=st.integers(0, 99))
def test_every_epoch_has_every_text_once(shapes, held_out, batch_tokens, seed):
    texts = texts_of(shapes)
    indices = range(min(held_out, len(texts) - 1), len(texts))
    for batches in first(3, texts, indices, batch_tokens, seed):
        assert sorted(itertools.chain.from_iterable(batches)) == list(indices)


@given(shapes=lengths, batch_tokens=st.integers(1, 100), seed=st.integers(0, 99))
def test_a_batch_is_full_with_its_last_text_and_only_one_of_a_pool_is_not(shapes, batch_tokens, seed):
    texts = texts_of(shapes)
    for batches in first(2, texts, range(len(texts)), batch_tokens, seed):
        replies = [[len(texts[i].reply) for i in batch] for batch in batches]
        assert all(sum(tokens[:-1]) < batch_tokens for tokens in replies)
        assert sum(sum(tokens) < batch_tokens for tokens in replies) <= 1


@given(shapes=lengths, batch_tokens=st.integers(1, 100))
def test_texts_of_like_length_share_a_batch(shapes, batch_tokens):
    texts = texts_of(shapes)
    (batches,) = first(1, texts, range(len(texts)), batch_tokens, 0)
    spans = sorted((len(texts[b[0]].tokens), len(texts[b[-1]].tokens)) for b in batches)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_the_order_is_a_function_of_the_seed(monkeypatch):
    monkeypatch.setattr(train.batches, "_POOL", 16)
    texts = texts_of([(1 + i % 3, 2 + i % 7) for i in range(60)])
    one, again, other = (first(4, texts, range(60), 20, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert all(epoch != another for epoch, another in itertools.combinations(one, 2))
    # Neighbours change, not only the order of the batches.
    batches = [{frozenset(batch) for batch in epoch} for epoch in one]
    assert len(batches[0] & batches[1]) < len(batches[0]) / 2


def test_long_and_short_batches_are_mixed(monkeypatch):
    monkeypatch.setattr(train.batches, "_POOL", 200)
    texts = texts_of([(1, 2 + i) for i in range(200)])
    (batches,) = first(1, texts, range(200), 50, 0)
    middles = [batch[0] for batch in batches]
    assert middles != sorted(middles)
    assert abs(sum(middles[: len(middles) // 2]) - sum(middles[len(middles) // 2 :])) < sum(middles) / 3
