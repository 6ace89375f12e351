import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from entmtp_env.decoding import GreedyRule, SampleRule, TreeDecoder
from entmtp_env.decoding.prompt_lookup import PromptLookupDecoder, look_up
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from tests.tiny import EOS, tiny_backbone, tiny_heads

VOCAB, SEED, LONGEST = 10, 8, 6
CONTEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


def earlier(context, n):
    """Where the last n tokens begin earlier, by comparing everywhere."""
    last = context[len(context) - n :]
    return [start for start in range(len(context) - n) if context[start : start + n] == last]


def by_hand(context, tokens, max_ngram):
    for n in range(max_ngram, 0, -1):
        if starts := earlier(context, n):
            text, place = list(context), starts[-1] + n
            # Copied one by one, so that a copy that overlaps its end copies itself.
            for i in range(tokens):
                text.append(text[place + i])
            return text[len(context) :]
    return []


@given(CONTEXTS, st.integers(0, 8), st.integers(1, 5))
def test_what_is_found_is_what_looking_everywhere_finds(context, tokens, max_ngram):
    found = look_up(np.array(context, dtype=np.int64), tokens, max_ngram).tolist()
    assert found == by_hand(context, tokens, max_ngram)


@given(CONTEXTS, st.integers(1, 8), st.integers(1, 5))
def test_transformers_finds_the_same_where_there_is_one_place(context, tokens, max_ngram):
    """Of several places transformers takes the first, and it never goes past the end of the context."""
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=tokens,
        max_matching_ngram_size=max_ngram,
        max_length=100,
        eos_token_id=torch.tensor([VOCAB]),
    )
    theirs = generator.get_candidates(torch.tensor([context]))[0][0, len(context) :].tolist()
    ours = look_up(np.array(context, dtype=np.int64), tokens, max_ngram).tolist()
    assert bool(ours) == bool(theirs)
    places = next((starts for n in range(max_ngram, 0, -1) if (starts := earlier(context, n))), [])
    if len(places) == 1:
        assert ours[: len(theirs)] == theirs


def test_a_periodic_text_is_continued_in_its_period():
    assert look_up(np.array([9, 1, 2, 3, 1, 2, 3, 1]), 7, 3).tolist() == [2, 3, 1, 2, 3, 1, 2]


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone(SEED, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def decoder(backbone):
    return PromptLookupDecoder(
        backbone, capacity=96, eos_token_ids=frozenset({EOS}), max_nodes=LONGEST, max_ngram=2
    )


@pytest.fixture(scope="module")
def reference(backbone):
    settings = {"capacity": 96, "eos_token_ids": frozenset({EOS}), "max_nodes": LONGEST}
    return TreeDecoder(backbone, tiny_heads(backbone), **settings)


def test_lossless_rules_give_the_autoregressive_text(decoder, reference):
    accepted = []

    @given(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
        st.lists(st.integers(0, LONGEST), min_size=1),
        st.sampled_from([GreedyRule(), SampleRule(0.5), SampleRule(1.0)]),
        st.integers(0, 99),
    )
    @example([0], [LONGEST], GreedyRule(), 0)
    def check(prompt, lengths, rule, seed):
        for one in (reference, decoder):
            one.start(prompt, rule, max_new_tokens=24, seed=seed)
        while not reference.finish_reason:
            reference.step(AUTOREGRESSIVE)
        steps = []
        while not decoder.finish_reason:
            context = [*prompt, *decoder.tokens, decoder.root]
            length = lengths[len(steps) % len(lengths)]
            found = by_hand(context, length, 2)
            steps.append(decoder.step(DraftTree.chain(length)))
            assert steps[-1].accept_length <= len(found)
            assert (steps[-1].first_draft_right is None) == (not found)
            assert steps[-1].tokens[1:] == found[: steps[-1].accept_length]
            assert decoder.length == len(prompt) + len(decoder.tokens)
        assert (decoder.tokens, decoder.finish_reason) == (reference.tokens, reference.finish_reason)
        accepted.append(max(step.accept_length for step in steps))

    check()
    # Not vacuous: long drafts stood.
    assert max(accepted) == LONGEST


def test_what_cannot_be_looked_up_is_refused(decoder, backbone):
    decoder.start([3, 4])
    with pytest.raises(ValueError, match="tree 'fork' is no chain"):
        decoder.step(DraftTree("fork", ((0,), (1,))))
    with pytest.raises(ValueError, match="7 nodes; this decoder was made for 6"):
        decoder.step(DraftTree.chain(7))
    with pytest.raises(ValueError, match="max_ngram must be at least 1, got 0"):
        PromptLookupDecoder(backbone, max_ngram=0)
