from collections import Counter
from random import Random

import pytest
import torch

from entmtp_env.decoding import Backbone, GreedyRule, SampleRule, TreeDecoder, TypicalRule
from entmtp_env.decoding.graph_decoder import GraphDecoder
from entmtp_env.decoding.graphs import call_directly
from entmtp_env.decoding.session import Session
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank, published_trees
from tests.entmtp_env.decoding.tape import Tapes
from tests.tiny import EOS, random_tree, tiny_backbone, tiny_heads, tiny_model

ARCHS = ("medusa", "hydra", "hydra-prefix")
RULES = {"greedy": GreedyRule, "sample": SampleRule, "typical": lambda: TypicalRule(0.7, 0.2, 0.6)}
BIG = published_trees()["hydra-default"]
BANK = default_bank()
# So small a vocabulary that deep paths are accepted.
VOCAB, CAP, SEED = 10, 16, 8
PROMPTS = [[1 + seed % 9, 3, *range(3, 3 + seed % 4)] for seed in range(8)]


def make(arch, kind=GraphDecoder, capacity=128, eos=frozenset({EOS}), overrides=None, deep=0, **settings):
    backbone = tiny_backbone(SEED, vocab_size=VOCAB, **(overrides or {}))
    heads = tiny_heads(backbone, arch, draft_vocab=VOCAB, deep_vocab=deep)
    return kind(backbone, heads, capacity=capacity, eos_token_ids=eos, **settings)


def run(decoder, prompt, trees, rule, cap=CAP, seed=0):
    """The text, and of every step what the host knows after it."""
    decoder.start(prompt, rule, max_new_tokens=cap, seed=seed)
    seen = []
    while not decoder.finish_reason:
        step = decoder.step(trees())
        state = (*decoder.base_signals(), *(x for values in decoder.head_signals() for x in values))
        seen.append((step.tokens, step.first_draft_right, step.finish_reason, decoder.root, state))
        assert decoder.length == len(prompt) + len(decoder.tokens)
        assert step.accept_length + 1 == len(step.tokens)
        parts = [step.draft_seconds, step.verify_seconds, step.accept_seconds, step.commit_seconds]
        assert min(parts) >= 0
        assert sum(parts) <= step.seconds
    return seen


def assert_same(seen, expected):
    assert [own[:4] for own in seen] == [own[:4] for own in expected]
    for own, other in zip(seen, expected, strict=True):
        assert own[4] == pytest.approx(other[4], abs=1e-5)


@pytest.fixture(scope="module", params=ARCHS)
def pair(request):
    """The eager decoder and the captured one, with small buckets."""
    return make(request.param, TreeDecoder), make(request.param, capture=Tapes(), bucket_rows=40)


@pytest.mark.parametrize("rule", RULES)
def test_texts_and_signals_are_the_eager_ones_for_every_tree_and_switching(pair, rule):
    eager, captured = pair
    accepted, reasons = Counter(), Counter()
    for seed, prompt in enumerate(PROMPTS):
        schedules = [[tree] * CAP for tree in (BANK if not seed else [BIG])]
        for schedule in [*schedules, Random(seed).choices(BANK.trees, k=CAP)]:
            expected = run(eager, prompt, iter(schedule).__next__, RULES[rule](), seed=seed)
            seen = run(captured, prompt, iter(schedule).__next__, RULES[rule](), seed=seed)
            assert_same(seen, expected)
            accepted.update(len(own[0]) for own in expected)
            reasons[expected[-1][2]] += 1
    # Not vacuous: deep paths were accepted, and texts ended in both ways.
    assert {1, 2, 3, 4} <= set(accepted)
    assert set(reasons) == {"eos", "length"}


def test_random_trees(pair):
    eager, captured = pair
    rng = Random(0)
    for seed in range(6):
        tree = random_tree(rng, rng.randint(1, 30))
        for rule in RULES.values():
            expected = run(eager, [seed], lambda tree=tree: tree, rule(), seed=seed)
            assert_same(run(captured, [seed], lambda tree=tree: tree, rule(), seed=seed), expected)


@pytest.mark.parametrize("capacity", [70, 75, 100])
def test_a_full_cache_ends_the_text_where_the_eager_decoder_does(capacity):
    settings = {"capacity": capacity, "eos": frozenset()}
    eager, captured = (
        make("hydra-prefix", TreeDecoder, **settings),
        make("hydra-prefix", capture=Tapes(), bucket_rows=32, **settings),
    )
    expected = run(eager, [1, 3, 5], lambda: BIG, GreedyRule(), cap=1000)
    assert expected[-1][2] == "context"
    assert_same(run(captured, [1, 3, 5], lambda: BIG, GreedyRule(), cap=1000), expected)


@pytest.mark.parametrize("cap", [1, 2, 3, 5])
def test_the_token_cap_is_exact(pair, cap):
    eager, captured = pair
    for prompt in PROMPTS[:4]:
        expected = run(eager, prompt, lambda: BIG, SampleRule(), cap=cap)
        assert sum(len(own[0]) for own in expected) <= cap
        assert_same(run(captured, prompt, lambda: BIG, SampleRule(), cap=cap), expected)


@pytest.mark.parametrize("rule", RULES)
def test_eager_and_captured_steps_mix(pair, rule):
    """A probed step is eager, and steps in pieces are; both find what the other left."""
    eager, captured = pair
    rng, own = Random(1), RULES[rule]()
    for seed, prompt in enumerate(PROMPTS):
        expected = run(eager, prompt, lambda: BIG, RULES[rule](), seed=seed)
        captured.start(prompt, own, max_new_tokens=CAP, seed=seed)
        for tokens, *_ in expected:
            way = rng.randrange(3)
            if way == 0:
                captured.probe(DraftTree.chain(4))
            if way == 1:
                rows = captured.verify(captured.draft(BIG))
                verdict = own.judge(BIG, rows[0], rows[2], captured.length)
                assert captured.commit(verdict, *rows) == tokens
            else:
                assert captured.step(BIG).tokens == tokens
        assert captured.finish_reason == expected[-1][2]


def test_a_rule_of_ones_own_decodes_eagerly(pair):
    class Own(GreedyRule):
        def choose(self, logits, positions):
            return super().choose(-logits, positions)

    eager, captured = pair
    before = len(captured._graphs._captured)
    expected = run(eager, [1, 3], lambda: BIG, Own())
    assert_same(run(captured, [1, 3], lambda: BIG, Own()), expected)
    assert expected != run(eager, [1, 3], lambda: BIG, GreedyRule())
    assert len(captured._graphs._captured) == before


@pytest.mark.parametrize("bucket_rows", [8, 128])
def test_a_tree_may_first_be_used_behind_a_row_that_it_has_not(pair, bucket_rows):
    """Whether it was never used at all or not yet with so many KV rows."""
    eager, captured = pair[0], make("hydra-prefix", capture=Tapes(), bucket_rows=bucket_rows)
    deep = False
    for prompt in PROMPTS:
        eager.start(prompt, max_new_tokens=CAP)
        captured.start(prompt, max_new_tokens=CAP)
        while not captured.finish_reason:
            deep |= bool(captured.step(BIG).accept_length)
            if not captured.finish_reason:
                captured.step(AUTOREGRESSIVE)
        while not eager.finish_reason:
            eager.step(AUTOREGRESSIVE)
        assert captured.tokens == eager.tokens
    assert deep


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_stop_the_text_and_finite_ones_are_not_asked_for_again(monkeypatch, value):
    decoder = make("hydra", capture=call_directly, eos=frozenset())
    decoder.start([1, 3], max_new_tokens=CAP)
    asked, check = [], Session._check_root
    monkeypatch.setattr(Session, "_check_root", lambda *args: asked.append(args) or check(*args))
    tokens = decoder.step(BIG).tokens
    assert not asked
    logits = decoder.backbone.logits
    monkeypatch.setattr(
        decoder.backbone, "logits", lambda hidden: logits(hidden).index_fill(1, torch.tensor([5]), value)
    )
    with pytest.raises(FloatingPointError, match=f"behind {len(tokens) + 1} generated tokens"):
        decoder.step(AUTOREGRESSIVE)
    with pytest.raises(RuntimeError, match=r"\(logits not finite\)"):
        decoder.step(AUTOREGRESSIVE)
    assert decoder.tokens == tokens


def test_a_refused_prompt_leaves_the_text_alone(pair):
    eager, captured = pair
    expected = run(eager, [1, 3], lambda: BIG, SampleRule(), seed=3)
    captured.start([1, 3], SampleRule(), max_new_tokens=CAP, seed=3)
    tokens = list(captured.step(BIG).tokens)
    with pytest.raises(ValueError, match="prompt ids"):
        captured.start([VOCAB], SampleRule(), seed=4)
    while not captured.finish_reason:
        tokens += captured.step(BIG).tokens
    assert tokens == [token for own in expected for token in own[0]]


def test_trees_that_do_not_fit_are_refused_and_ended_texts_too(pair):
    _, captured = pair
    captured.start([1, 3], max_new_tokens=1)
    with pytest.raises(ValueError, match="has depth 5, but there are 4 draft heads"):
        captured.step(DraftTree.chain(5))
    captured.step(AUTOREGRESSIVE)
    with pytest.raises(RuntimeError, match=r"\(length\)"):
        captured.step(AUTOREGRESSIVE)


def test_ungrouped_heads_biases_and_a_smaller_vocabulary_below_the_first_depth():
    overrides = {"num_key_value_heads": 4, "attention_bias": True}
    eager, captured = (
        make("hydra-prefix", kind, overrides=overrides, deep=8, **settings)
        for kind, settings in ((TreeDecoder, {}), (GraphDecoder, {"capture": Tapes()}))
    )
    tree = BANK[BANK.index("tree-31x4")]
    for prompt in PROMPTS[:3]:
        expected = run(eager, prompt, lambda: tree, TypicalRule())
        assert_same(run(captured, prompt, lambda: tree, TypicalRule()), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", RULES)
def test_cuda_graphs_give_the_eager_texts(rule):
    backbone = Backbone(tiny_model(SEED, vocab_size=VOCAB), torch.float32, "cuda")
    heads = tiny_heads(backbone, draft_vocab=VOCAB)
    eager, captured = (
        kind(backbone, heads, capacity=128, eos_token_ids=frozenset({EOS}))
        for kind in (TreeDecoder, GraphDecoder)
    )
    for seed, prompt in enumerate(PROMPTS):
        for tree in BANK:
            expected = run(eager, prompt, lambda tree=tree: tree, RULES[rule](), seed=seed)
            assert_same(run(captured, prompt, lambda tree=tree: tree, RULES[rule](), seed=seed), expected)


def test_rows_of_nan_do_not_outlive_their_text():
    """A graph reads whole buckets behind a mask, and no mask hides a NaN."""
    decoder, eager = make("hydra-prefix", capture=Tapes(), bucket_rows=40), make("hydra-prefix", TreeDecoder)
    decoder.start(PROMPTS[0])
    decoder.step(BIG)
    for cache in (decoder._cache, decoder._prefix_cache):
        cache._data[..., 5:, :] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        decoder.step(BIG)
    trees = [BIG] * CAP
    expected = run(eager, PROMPTS[1], iter(trees).__next__, GreedyRule())
    assert_same(run(decoder, PROMPTS[1], iter(trees).__next__, GreedyRule()), expected)
