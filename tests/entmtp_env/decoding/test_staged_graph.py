from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding import Backbone, GreedyRule, SampleRule, TypicalRule
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.staged_graph import StagedGraphDecoder
from entmtp_env.decoding.stages import Stages
from entmtp_env.decoding.static_choice import StagedChoice
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from tests.entmtp_env.decoding.tape import Tapes
from tests.entmtp_env.decoding.test_staged import ALL, ARCHS, CAP, SEED, VOCAB
from tests.tiny import EOS, tiny_backbone, tiny_heads, tiny_model

RULES = {"greedy": GreedyRule, "sample": SampleRule, "typical": lambda: TypicalRule(0.7, 0.2, 0.6)}
CAPACITY = 128
STAGES = ALL[1]  # calibrated


def make(arch, kind=StagedGraphDecoder, stages=STAGES, eos=frozenset({EOS}), capacity=CAPACITY, **settings):
    backbone = tiny_backbone(SEED, vocab_size=VOCAB)
    heads = tiny_heads(backbone, arch, draft_vocab=VOCAB)
    if kind is StagedGraphDecoder:
        settings = {"capture": Tapes(), "bucket_rows": 40, "row_buckets": (4, 8, 16)} | settings
    return kind(backbone, heads, stages, capacity=capacity, eos_token_ids=eos, **settings)


made = cache(make)


def run(decoder, prompt, decide, rule, seed=0, cap=CAP):
    """The text, and of every step what the host knows after it."""
    decoder.start(prompt, rule, max_new_tokens=cap, seed=seed)
    seen, drafting = [], 0.0
    while not decoder.finish_reason:
        nodes = decide(decoder)
        if nodes is None:
            drafting += decoder.deepen()
            continue
        step = decoder.verify_best(nodes)
        assert step.draft_seconds == pytest.approx(drafting)
        parts = [step.draft_seconds, step.verify_seconds, step.accept_seconds, step.commit_seconds]
        assert min(parts) >= 0
        assert sum(parts) <= step.seconds + 1e-9
        assert decoder.length == len(prompt) + len(decoder.tokens)
        assert decoder.table.depth == 0
        topology = decoder.built.draft_tree("built").nodes
        seen.append((step.tokens, step.first_draft_right, step.finish_reason, decoder.root, topology))
        drafting = 0.0
    return seen


def at_random(seed):
    random = Random(seed)

    def decide(decoder):
        if decoder.table.depth < decoder.stages.depth and random.random() < 0.75:
            return None
        return random.randint(0, min(decoder.max_nodes, len(decoder.table.descending)))

    return decide


def full(decoder):
    return None if decoder.table.depth < decoder.stages.depth else decoder.stages.max_nodes


def random_choice(seed, stages=STAGES, rate=None):
    rng = np.random.default_rng(seed)
    seconds = 0.01 + 0.002 * rng.random((len(stages.budgets), CAPACITY + 1)).cumsum(axis=0)
    drafting = 0.001 + 0.002 * rng.random((stages.depth, CAPACITY + 1))
    return StagedChoice(tuple(0.4 * rng.random(stages.depth)), seconds, drafting, rate)


@pytest.fixture(scope="module", params=ARCHS)
def pair(request):
    """The eager decoder and the captured one, with small buckets."""
    return make(request.param, StagedDecoder), make(request.param)


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_of_the_eager_decoder(pair, rule):
    eager, captured = pair
    accepted, beside = Counter(), 0
    for seed in range(8):
        prompt = [1 + seed % 9, 3, seed % 4]
        for decide in (lambda seed=seed: at_random(seed), lambda: full):
            expected = run(eager, prompt, decide(), RULES[rule](), seed)
            assert run(captured, prompt, decide(), RULES[rule](), seed) == expected
            accepted.update(len(own[0]) for own in expected)
            beside += sum(len(own[0]) > 1 and own[1] is False for own in expected)
    # Not vacuous: deep paths were accepted, and not the greedy ones alone.
    assert {1, 2, 3} <= set(accepted)
    assert beside > 0 or rule == "typical"


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(ALL), st.sampled_from(["greedy", "sample"]), st.booleans())
def test_texts_do_not_depend_on_the_decisions(seed, stages, rule, on_device):
    eager, decoder = (made(ARCHS[seed % 3], kind, stages) for kind in (StagedDecoder, StagedGraphDecoder))
    prompt, random = [seed % VOCAB, 3, *range(seed % 4)], Random(seed)
    eager.start(prompt, RULES[rule](), max_new_tokens=CAP, seed=seed)
    while not eager.finish_reason:
        eager.step(AUTOREGRESSIVE)
    if on_device:
        choice = random_choice(seed, stages, rate=random.choice([None, 50.0]))
        decoder.start(prompt, RULES[rule](), max_new_tokens=CAP, seed=seed)
        while not decoder.finish_reason:
            rows = random.choice([None, *decoder._rows])
            decoder.step_by(choice, random.randint(1, stages.depth), rows)
    else:
        run(decoder, prompt, at_random(seed), RULES[rule](), seed)
    assert (decoder.tokens, decoder.finish_reason) == (eager.tokens, eager.finish_reason)


@pytest.mark.parametrize("rate", [None, 60.0])
def test_the_device_decides_as_arithmetic_on_the_host_does(pair, rate):
    eager, captured = pair
    stages, sizes = captured.stages, set()
    for seed in range(10):
        choice, emitted, spent = random_choice(seed, rate=rate), 0.0, 0.0
        random = Random(seed)
        for decoder in pair:
            decoder.start([1 + seed % 9, 3], max_new_tokens=CAP)
        while not eager.finish_reason:
            rows = random.choice([None, *captured._rows])
            score = eager.base_signals()[0]
            while eager.table.depth < stages.depth and score >= choice.thresholds[eager.table.depth]:
                eager.deepen()
                score = np.float32(max(eager.table.level))
            most = min(len(eager.table.descending), stages.max_nodes if rows is None else rows - 1)
            options = {
                n: (
                    1 + min(sum(eager.table.descending[:n]), stages.depth),
                    choice.verify_seconds[k, eager.length],
                )
                for k, n in enumerate(stages.budgets)
                if n <= most
            }
            drafting = spent + choice.draft_seconds[: eager.table.depth, eager.length].sum()
            own = rate or max((emitted + tokens) / (drafting + cost) for tokens, cost in options.values())
            best = max(options, key=lambda n: options[n][0] - own * options[n][1])
            emitted, spent = emitted + options[best][0], drafting + options[best][1]
            expected = eager.verify_best(best)
            step = captured.step_by(choice, rows=rows)
            assert step.tokens == expected.tokens
            assert step.first_draft_right == expected.first_draft_right
            assert captured.built.draft_tree("b").nodes == eager.built.draft_tree("b").nodes
            assert min(step.draft_seconds, step.verify_seconds) > 0
            sizes.add(best)
        assert captured.finish_reason == eager.finish_reason
    assert len(sizes) > 4


def test_memory_of_the_rule_begins_with_the_text():
    decoder, choice = make("hydra"), random_choice(3)

    def sizes():
        decoder.start([1, 3], max_new_tokens=CAP)
        seen = []
        while not decoder.finish_reason:
            decoder.step_by(choice)
            seen.append(len(decoder.built))
        return seen

    first = sizes()
    assert sizes() == first
    own = decoder._choices[choice]
    assert own._after[0] >= len(first)
    decoder.start([1, 3])
    assert own._after.tolist() == [0, 0]


def test_graphs_are_those_of_a_few_numbers_of_rows():
    """However many trees are built, no graph is captured once each bucket has been seen."""
    decoder = make("hydra-prefix", eos=frozenset(), bucket_rows=CAPACITY)
    assert list(decoder._rows) == [4, 8, 16, STAGES.max_nodes + 1]
    assert [decoder.rows_for(n) for n in (0, 3, 4, 7, 15, 16, STAGES.max_nodes)] == [4, 4, 8, 8, 16, 33, 33]
    tapes = decoder._graphs._capture
    for seed in range(6):
        run(decoder, [1, 3], at_random(seed), GreedyRule(), seed, cap=40)
    # Drafting 3 depths, advancing, and 4 pieces for each number of rows.
    assert len(tapes.captured) == 3 + 1 + 4 * 4


def test_a_text_ends_where_that_of_the_eager_decoder_does():
    stages = Stages("s", STAGES.shape, (0, 2, 20), STAGES.curves)
    settings = {"stages": stages, "eos": frozenset()}
    for capacity in (40, 45):
        eager, captured = (
            make("hydra-prefix", kind, capacity=capacity, **settings)
            for kind in (StagedDecoder, StagedGraphDecoder)
        )
        expected = run(eager, [1, 3, 5], full, GreedyRule(), cap=1000)
        assert expected[-1][2] == "context"
        assert run(captured, [1, 3, 5], full, GreedyRule(), cap=1000) == expected


def test_steps_by_trees_on_the_device_and_in_stages_mix(pair):
    eager, captured = pair
    choice, random = random_choice(0), Random(0)
    for seed in range(6):
        rule = SampleRule()
        eager.start([seed, 3], rule, max_new_tokens=CAP, seed=seed)
        while not eager.finish_reason:
            eager.step(AUTOREGRESSIVE)
        captured.start([seed, 3], SampleRule(), max_new_tokens=CAP, seed=seed)
        while not captured.finish_reason:
            way = random.randrange(4)
            if way:
                captured.deepen()
            if way == 3:
                captured.probe(DraftTree.chain(2))
            if way == 1:
                captured.verify_best(3)
            elif way == 2:
                captured.step_by(choice)
            else:
                captured.step(DraftTree.chain(3))
        assert captured.tokens == eager.tokens


def test_a_rule_of_ones_own_is_eager(pair):
    class Own(GreedyRule):
        def choose(self, logits, positions):
            return super().choose(-logits, positions)

    eager, captured = pair
    assert run(captured, [1, 3], at_random(1), Own()) == run(eager, [1, 3], at_random(1), Own())
    captured.start([1, 3], Own())
    with pytest.raises(ValueError, match="'greedy' are eager; decide by deepen"):
        captured.step_by(random_choice(0))


def test_what_cannot_be_decided():
    decoder = make("hydra", stages=Stages("s", STAGES.shape, (0, 4)))
    choice = random_choice(0, decoder.stages)
    for call in (decoder.deepen, lambda: decoder.verify_best(0), lambda: decoder.step_by(choice)):
        with pytest.raises(RuntimeError, match=r"no text to continue \(not started\)"):
            call()
    decoder.start([1, 3])
    with pytest.raises(ValueError, match="3 nodes asked for, 0 drafted"):
        decoder.verify_best(3)
    with pytest.raises(ValueError, match="5 nodes asked for; the largest budget is 4"):
        decoder.verify_best(5)
    with pytest.raises(ValueError, match="depth must be 1 to 3, got 4"):
        decoder.step_by(choice, 4)
    with pytest.raises(ValueError, match="rows must be one of 4, 5, got 6"):
        decoder.step_by(choice, rows=6)
    with pytest.raises(
        ValueError,
        match=r"need 3 thresholds and seconds of shapes \(2, 129\) and \(3, 129\), got 3, \(33, 129\) and",
    ):
        decoder.step_by(random_choice(0))
    for _ in range(3):
        decoder.deepen()
    with pytest.raises(RuntimeError, match="all 3 depths are drafted"):
        decoder.deepen()
    # Nothing of this has hurt the text.
    assert len(decoder.step_by(choice).tokens) >= 1


def test_heads_that_are_too_few():
    with pytest.raises(ValueError, match="have depth 5; there are only 4 heads"):
        make("hydra", stages=Stages("s", DraftShape((1,) * 5, (1,) * 5), (0,)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rule", RULES)
def test_cuda_graphs_give_the_eager_steps(rule):
    backbone = Backbone(tiny_model(SEED, vocab_size=VOCAB), torch.float32, "cuda")
    heads = tiny_heads(backbone, draft_vocab=VOCAB)
    eager, captured = (
        kind(backbone, heads, STAGES, capacity=CAPACITY, eos_token_ids=frozenset({EOS}))
        for kind in (StagedDecoder, StagedGraphDecoder)
    )
    choice = random_choice(0)
    for seed in range(8):
        prompt = [1 + seed % 9, 3, seed % 4]
        expected = run(eager, prompt, at_random(seed), RULES[rule](), seed)
        assert run(captured, prompt, at_random(seed), RULES[rule](), seed) == expected
        if rule != "typical":
            captured.start(prompt, RULES[rule](), max_new_tokens=CAP, seed=seed)
            while not captured.finish_reason:
                captured.step_by(choice, rows=Random(seed).choice([None, 8]))
            assert captured.tokens == eager.tokens
