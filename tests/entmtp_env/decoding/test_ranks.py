from collections import Counter
from random import Random

import numpy as np
import pytest
import torch

from entmtp_env.decoding import GreedyRule, SampleRule
from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE, rank_texts, token_ranks
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank
from entmtp_env.trees.walk import accept_lengths, decode_steps
from tests.tiny import EOS, random_tree, tiny_backbone, tiny_decoder, tiny_heads

ARCHS = ("medusa", "hydra", "hydra-prefix")
RULES = {"greedy": GreedyRule, "sample": SampleRule}
# So small a vocabulary that 10 children of a node hold the next token: deep paths are accepted.
VOCAB, CAP, DEPTH = 11, 12, 4
PROMPTS = [[1 + seed % 9, 3, *range(3, 3 + seed % 4)] for seed in range(14)]


@pytest.fixture(scope="module", params=[*ARCHS, "deep-vocab"])
def decoder(request):
    """Heads that cannot draft one of the tokens, or deeper ones that cannot draft one token more."""
    if request.param == "deep-vocab":
        sizes = {"vocab_size": VOCAB + 1, "draft_vocab": VOCAB, "deep_vocab": VOCAB - 1}
        return tiny_decoder("hydra", seed=6, capacity=128, **sizes)
    return tiny_decoder(request.param, seed=3, capacity=128, draft_vocab=VOCAB - 1, vocab_size=VOCAB)


def decode(decoder, prompt, tree, rule, seed):
    decoder.start(prompt, rule, max_new_tokens=CAP, seed=seed)
    accepted = []
    while not decoder.finish_reason:
        accepted.append(decoder.step(tree).accept_length)
    return decoder.tokens, accepted


def rank(decoder, texts):
    ranked = dict(rank_texts(decoder.backbone, [decoder.heads], texts))
    return [ranked[i][0] for i in range(len(texts))]


@pytest.mark.parametrize("rule", RULES)
def test_replayed_steps_are_those_of_the_decoder(decoder, rule):
    """Every tree accepts, step by step, what the ranks of the autoregressive text say that it accepts."""
    random = Random(0)
    trees = [*default_bank(), *(random_tree(random, 1 + random.randrange(40), ranks=9) for _ in range(8))]
    texts = [decode(decoder, p, AUTOREGRESSIVE, RULES[rule](), seed)[0] for seed, p in enumerate(PROMPTS)]
    seen = Counter()
    for seed, (prompt, ranked) in enumerate(
        zip(PROMPTS, rank(decoder, list(zip(PROMPTS, texts, strict=True))), strict=True)
    ):
        for tree in trees:
            text, live = decode(decoder, prompt, tree, RULES[rule](), seed)
            assert text == texts[seed]
            lengths = accept_lengths(tree, ranked.ranks)
            assert [int(lengths[at]) for at in decode_steps(lengths)] == live
            seen.update(live)
    assert {0, 1, 2, 3} <= set(seen)
    assert {text[-1] == EOS for text in texts} == {True, False}


def test_ranks_are_places_in_the_sorted_drafts(decoder):
    """Against a loop over positions that sorts all candidates."""
    prompt, heads = PROMPTS[3], decoder.heads
    text = Random(0).sample([*range(VOCAB)] * 3, 3 * VOCAB)
    (ranked,) = rank(decoder, [(prompt, text)])
    ids, start = [*prompt, *text], len(prompt)
    with torch.inference_mode():
        hidden = decoder.backbone.forward_batch(torch.tensor([ids]))
        states = (hidden if heads.prefix is None else heads.prefix(hidden))[0]
        expected = np.full((len(text), DEPTH), NO_TOKEN)
        for root in range(len(text)):
            for depth in range(1, DEPTH + 1):
                if root + depth >= len(text):
                    continue
                path = ids[start + root : start + root + depth]
                inputs = [states[start + root - 1]]
                if heads.sequential:
                    inputs += [heads.embed(torch.tensor(token)) for token in path]
                logits = heads.logits(depth, torch.cat(inputs))
                order = heads.vocab_ids[logits.argsort(descending=True)].tolist()
                token = text[root + depth]
                expected[root, depth - 1] = order.index(token) if token in order else NOT_DRAFTABLE
    assert ranked.ranks.dtype == np.int32
    assert ranked.ranks.tolist() == expected.tolist()
    assert NOT_DRAFTABLE in expected


def test_confidence_and_entropy_are_those_of_the_drafted_chain(decoder):
    """At every position what the decoder's probe says, off the true path and at the end of the text too."""
    prompt = PROMPTS[2]
    decoder.start(prompt, SampleRule(), max_new_tokens=CAP)
    expected = []
    while not decoder.finish_reason:
        decoder.probe(DraftTree.chain(DEPTH))
        expected.append(decoder.head_signals())
        decoder.step(AUTOREGRESSIVE)
    (ranked,) = rank(decoder, [(prompt, decoder.tokens)])
    assert ranked.confidence.dtype == ranked.entropy.dtype == np.float32
    np.testing.assert_allclose(ranked.confidence, [confidence for confidence, _ in expected], rtol=1e-4)
    np.testing.assert_allclose(ranked.entropy, [entropy for _, entropy in expected], rtol=1e-4)


def test_texts_do_not_depend_on_their_batch_and_heads_share_the_base(decoder):
    texts = [(p, decode(decoder, p, AUTOREGRESSIVE, SampleRule(), i)[0]) for i, p in enumerate(PROMPTS)]
    texts.append(([5] * 40, [3]))
    other = tiny_heads(decoder.backbone, "medusa", depth=2, draft_vocab=3, seed=5)
    together = dict(rank_texts(decoder.backbone, [decoder.heads, other], texts))
    assert sorted(together) == list(range(len(texts)))
    for index, text in enumerate(texts):
        for heads, got in zip((decoder.heads, other), together[index], strict=True):
            ((_, [alone]),) = rank_texts(decoder.backbone, [heads], [text])
            assert got.ranks.shape == (len(text[1]), heads.config.depth)
            assert got.ranks.tolist() == alone.ranks.tolist()
            np.testing.assert_allclose(got.confidence, alone.confidence, rtol=1e-4)
            np.testing.assert_allclose(got.entropy, alone.entropy, rtol=1e-4)


def test_of_equal_candidates_the_lower_draft_index_comes_first():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, "medusa", depth=1, pack=False)
    torch.nn.init.zeros_(heads.norms[0].weight)
    heads.pack()
    tokens = torch.cat((torch.tensor([0]), heads.vocab_ids))[None]
    roots = torch.ones_like(tokens, dtype=torch.bool)
    roots[0, 0] = False
    with torch.inference_mode():
        ranks, confidence, entropy = token_ranks(heads, tokens, backbone.forward_batch(tokens), roots)
    size = heads.config.draft_vocab_size
    assert ranks[:, 0].tolist() == [*range(1, size), NO_TOKEN]
    torch.testing.assert_close(confidence, torch.full((size, 1), 1 / size))
    torch.testing.assert_close(entropy, torch.ones(size, 1))


def test_a_single_draftable_token_is_certain():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, draft_vocab=1)
    ((_, [ranked]),) = rank_texts(backbone, [heads], [((3, 4), (5, 6))])
    assert (ranked.confidence == 1).all()
    assert (ranked.entropy == 0).all()


@pytest.mark.parametrize("text", [((), (1,)), ((1,), ())])
def test_empty_prompts_and_replies_are_refused(text):
    backbone = tiny_backbone()
    with pytest.raises(ValueError, match="at least one token"):
        next(rank_texts(backbone, [tiny_heads(backbone)], [text]))


def test_bfloat16_gives_the_same_types():
    backbone = tiny_backbone(dtype=torch.bfloat16)
    ((_, [ranked]),) = rank_texts(backbone, [tiny_heads(backbone)], [((3, 4), (5, 6, 7, 8))])
    assert (ranked.ranks.dtype, ranked.confidence.dtype) == (np.int32, np.float32)
    assert ranked.entropy.dtype == np.float32
    for values in (ranked.confidence, ranked.entropy):
        assert ((values > 0) & (values <= 1)).all()
