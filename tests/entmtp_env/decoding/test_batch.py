import dataclasses
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule, TreeDecoder, batch
from entmtp_env.decoding.batch import Request, generate_batch
from entmtp_env.trees import DraftTree
from tests.tiny import EOS, VOCAB, tiny_backbone, tiny_heads

BACKBONE = tiny_backbone()
DECODER = TreeDecoder(BACKBONE, tiny_heads(BACKBONE), eos_token_ids=frozenset({EOS}), capacity=256)


def rule(temperature):
    return SampleRule(temperature) if temperature else GreedyRule()


def reference(prompt, temperature, seed, max_new_tokens):
    DECODER.start(prompt, rule(temperature), max_new_tokens=max_new_tokens, seed=seed)
    while not DECODER.finish_reason:
        DECODER.step(DraftTree("autoregressive", ()))
    return DECODER.tokens


texts = st.tuples(
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.7, 1.3]),
    st.integers(0, 2**40),
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(texts, max_size=9),
    st.integers(1, 5),
    st.integers(1, 20),
    st.sampled_from([1, 2, 16]),
    st.sampled_from([1, 20, 4096]),
    st.booleans(),
)
def test_texts_and_hidden_states_are_those_of_the_decoder_and_of_whole_passes(
    jobs, slots, max_new_tokens, attention_group, rows_per_prefill, keep
):
    requests = [Request(prompt, rule(temperature), seed) for prompt, temperature, seed in jobs]
    hidden = {} if keep else None
    with (
        patch.object(batch, "_ATTENTION_GROUP", attention_group),
        patch.object(batch, "_ROWS_PER_PREFILL", rows_per_prefill),
    ):
        written = list(
            generate_batch(
                BACKBONE,
                requests,
                max_new_tokens=max_new_tokens,
                eos_token_ids=frozenset({EOS}),
                slots=slots,
                hidden=hidden,
            )
        )
    assert sorted(index for index, _ in written) == list(range(len(jobs)))
    for index, reply in written:
        assert reply == reference(*jobs[index], max_new_tokens)
        if hidden is not None:
            whole = BACKBONE.forward_batch(torch.tensor([[*jobs[index][0], *reply]]))[0]
            torch.testing.assert_close(hidden[index], whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("keep", [False, True])
def test_a_text_ends_where_the_model_has_no_more_positions(keep):
    backbone = tiny_backbone(max_position_embeddings=16)
    requests, hidden = [Request([3] * 10), Request([4] * 3)], {} if keep else None
    replies = dict(generate_batch(backbone, requests, max_new_tokens=50, slots=2, hidden=hidden))
    assert [len(replies[0]), len(replies[1])] == [6, 13]
    assert not keep or [len(hidden[0]), len(hidden[1])] == [16, 16]


@pytest.mark.parametrize("prompt", [[], [3] * 16])
def test_a_prompt_without_room_is_refused(prompt):
    backbone = tiny_backbone(max_position_embeddings=16)
    with pytest.raises(ValueError, match=r"request 1: a prompt of (0|16) tokens, expected 1 to 15"):
        list(generate_batch(backbone, [Request([3]), Request(prompt)], max_new_tokens=50))


def test_logits_of_nan_name_the_request(monkeypatch):
    backbone, logits = tiny_backbone(), BACKBONE.logits
    calls = []

    def spoilt(hidden):
        calls.append(len(hidden))
        result = logits(hidden)
        # The third token of the second text, both being written side by side.
        if len(calls) == 3:
            result[1] = torch.nan
        return result

    monkeypatch.setattr(backbone, "logits", spoilt)
    requests = [Request((3, 4, 5), GreedyRule(), 0), Request((6, 7), GreedyRule(), 1)]
    with pytest.raises(FloatingPointError, match=r"request 1: .* behind 2 tokens of the reply are NaN"):
        list(generate_batch(backbone, requests, max_new_tokens=9, eos_token_ids=frozenset(), slots=2))


def test_too_many_texts_for_the_memory_say_what_was_asked_for():
    backbone = tiny_backbone()
    backbone.config = dataclasses.replace(backbone.config, max_positions=10**12)
    # 2 layers x keys and values x 2 texts x 2 heads x 10^12 tokens x 8 numbers x 4 bytes.
    message = (
        r"writing 2 texts of up to 1000000000000 tokens at a time \(5\.12e\+05 GB of keys and values\): "
        r"no memory is left .*; lower slots or max_new_tokens"
    )
    with pytest.raises(MemoryError, match=message):
        list(generate_batch(backbone, [Request([3])] * 9, max_new_tokens=10**12 - 1, slots=2))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(torch.OutOfMemoryError("CUDA out of memory"), MemoryError), (RuntimeError("a bug"), RuntimeError)],
)
def test_a_shortage_while_writing_is_told_from_a_bug(monkeypatch, error, expected):
    backbone = tiny_backbone()

    def fail(_):
        raise error

    replies = generate_batch(backbone, [Request([3]), Request([4])], max_new_tokens=9, slots=1)
    next(replies)
    monkeypatch.setattr(backbone, "logits", fail)
    with pytest.raises(expected) as caught:
        next(replies)
    assert ("lower slots" in str(caught.value)) is (expected is MemoryError)
