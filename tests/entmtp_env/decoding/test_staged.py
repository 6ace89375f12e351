from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule, TypicalRule
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.stages import Stages
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from tests.tiny import EOS, tiny_decoder

ARCHS = ("medusa", "hydra", "hydra-prefix")
RULES = {"greedy": GreedyRule, "sample": SampleRule}
# So small a vocabulary that the drafts hold the next token: deep paths are accepted.
VOCAB, CAP, SEED = 10, 16, 8
CURVES = tuple(Curve((0.0, 0.3, 1.0), y) for y in ((0.0, 0.1, 0.9), (0.0, 0.5, 0.8), (0.0, 0.2, 1.0)))
SHAPES = (DraftShape((1, 3, 4), (8, 4, 3)), DraftShape((1, 2, 2), (10, 9, 10)), DraftShape((1,), (6,)))
ALL = tuple(
    Stages("s", shape, tuple(range(shape.nodes + 1)), curves[: shape.depth])
    for shape in SHAPES
    for curves in ((), CURVES)
)


@pytest.fixture(scope="module")
def plain():
    """A decoder that chooses trees, for each kind of heads."""
    settings = {"seed": SEED, "capacity": 128, "draft_vocab": VOCAB, "vocab_size": VOCAB}
    return {arch: tiny_decoder(arch, **settings) for arch in ARCHS}


def staged(decoder, stages, **settings):
    settings = {"capacity": 128, "eos_token_ids": decoder.eos_token_ids} | settings
    return StagedDecoder(decoder.backbone, decoder.heads, stages, **settings)


def autoregressive(decoder, prompt, rule, seed):
    decoder.start(prompt, rule, max_new_tokens=CAP, seed=seed)
    while not decoder.finish_reason:
        decoder.step(AUTOREGRESSIVE)
    return decoder.tokens, decoder.finish_reason


def run(decoder, prompt, decide, rule=None, seed=0, cap=CAP):
    """Decode one text; ``decide(decoder)`` is how many nodes to verify, or None to draft deeper."""
    decoder.start(prompt, rule, max_new_tokens=cap, seed=seed)
    steps, drafting = [], 0.0
    while not decoder.finish_reason:
        nodes = decide(decoder)
        if nodes is None:
            drafting += decoder.deepen()
            continue
        depth = decoder.table.depth
        step = decoder.verify_best(nodes)
        assert len(decoder.built) == nodes
        assert step.accept_length + 1 == len(step.tokens)
        assert step.accept_length <= min(nodes, depth)
        assert (step.first_draft_right is None) == (nodes == 0)
        assert step.draft_seconds == pytest.approx(drafting)
        parts = [step.draft_seconds, step.verify_seconds, step.accept_seconds, step.commit_seconds]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(step.seconds)
        assert decoder.length == len(prompt) + len(decoder.tokens) <= decoder.capacity
        assert decoder.table.depth == 0
        steps.append(step)
        drafting = 0.0
    assert decoder.tokens == [token for step in steps for token in step.tokens]
    return decoder.tokens, decoder.finish_reason, steps


def full(nodes):
    """Draft everything, then verify that many."""
    return lambda decoder: None if decoder.table.depth < decoder.stages.depth else nodes


@settings(max_examples=25)
@given(st.randoms(use_true_random=False), st.sampled_from(ALL), st.integers(0, 99), st.sampled_from([*RULES]))
def test_texts_do_not_depend_on_the_decisions(plain, random, stages, seed, rule):
    def decide(decoder):
        drafted = len(decoder.table.descending)
        if decoder.table.depth < stages.depth and random.random() < 0.7:
            return None
        return random.randint(0, drafted)

    for decoder in plain.values():
        prompt = [seed % VOCAB, 3, *range(seed % 4)]
        expected = autoregressive(decoder, prompt, RULES[rule](), seed)
        assert run(staged(decoder, stages), prompt, decide, RULES[rule](), seed)[:2] == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_deep_and_branching_paths_are_accepted(plain, arch):
    """What the property above rests on is not vacuous."""
    decoder, accepted, reasons, beside = staged(plain[arch], ALL[2]), Counter(), Counter(), 0
    for seed in range(14):

        def decide(decoder):
            return full(decoder.stages.max_nodes)(decoder)

        _, reason, steps = run(decoder, [1 + seed % 9, 3, seed % 4], decide)
        accepted.update(step.accept_length for step in steps)
        beside += sum(step.accept_length > 0 and not step.first_draft_right for step in steps)
        reasons[reason] += 1
    assert {0, 1, 2, 3} <= set(accepted)
    assert beside > 5
    assert set(reasons) == {"eos", "length"}


@pytest.mark.parametrize("rule", [GreedyRule, TypicalRule])
def test_a_step_accepts_what_the_decoder_of_trees_accepts_of_the_same_tree(plain, rule):
    for stages in (ALL[0], ALL[1]):
        decoder, other = staged(plain["hydra"], stages), plain["hydra"]
        for seed in range(6):
            decoder.start([seed, 3], rule(), max_new_tokens=CAP)
            other.start([seed, 3], rule(), max_new_tokens=CAP)
            while not decoder.finish_reason:
                while decoder.table.depth < 3:
                    decoder.deepen()
                step = decoder.verify_best(12)
                expected = other.step(decoder.built.draft_tree("same"))
                assert (step.tokens, step.first_draft_right) == (expected.tokens, expected.first_draft_right)
            assert decoder.tokens == other.tokens


def test_steps_by_a_tree_may_come_between(plain):
    decoder = staged(plain["hydra-prefix"], ALL[0])
    expected = autoregressive(plain["hydra-prefix"], [4, 4], GreedyRule(), 0)
    decoder.start([4, 4], max_new_tokens=CAP)
    turn = 0
    while not decoder.finish_reason:
        decoder.deepen()
        if turn % 2:
            decoder.step(DraftTree.chain(2))
        else:
            decoder.verify_best(5)
        turn += 1
        assert decoder.table.depth == 0
    assert (decoder.tokens, decoder.finish_reason) == expected


def test_a_full_cache_ends_the_text(plain):
    decoder = staged(plain["hydra"], ALL[0], capacity=64, eos_token_ids=frozenset())
    nodes = decoder.max_nodes
    tokens, reason, _ = run(decoder, [1, 3, 5], full(nodes), cap=1000)
    assert reason == "context"
    assert decoder.length + 1 + nodes > 64
    decoder.start([1, 3, 5], max_new_tokens=len(tokens))
    while not decoder.finish_reason:
        decoder.verify_best(0)
    assert decoder.tokens == tokens


@pytest.mark.parametrize(("spare", "steps"), [(-1, 0), (0, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("largest", [2, 16])
def test_a_step_is_begun_exactly_when_the_cache_has_room_for_it(plain, largest, spare, steps):
    """Root and largest budget need rows, whatever is verified; a step that accepts nothing leaves one."""
    prompt, stages = [1, 3, 5], Stages("s", SHAPES[0], (0, 1, largest))
    capacity = len(prompt) + 1 + largest + spare
    decoder = staged(plain["hydra"], stages, capacity=capacity, eos_token_ids=frozenset())
    if not steps:
        with pytest.raises(ValueError, match=f"do not fit into {capacity} KV rows"):
            decoder.start(prompt)
        return
    tokens, reason, taken = run(decoder, prompt, lambda _: 0, cap=1000)
    assert (len(taken), reason) == (steps, "context")
    drafted, reason, _ = run(decoder, prompt, full(largest), cap=1000)
    assert reason == "context"
    assert drafted[:steps] == tokens[: len(drafted)]
    assert len(prompt) + len(drafted) + 1 + largest > capacity


def test_a_start_after_an_unfinished_draft_is_fresh(plain):
    decoder = staged(plain["hydra"], ALL[0])
    expected = run(decoder, [4, 4], full(9))[:2]
    decoder.start([7, 1, 2])
    decoder.deepen()
    assert run(decoder, [4, 4], full(9))[:2] == expected


def test_what_cannot_be_decided(plain):
    decoder = staged(plain["hydra"], Stages("s", SHAPES[0], (0, 4)))
    for call in (decoder.deepen, lambda: decoder.verify_best(0)):
        with pytest.raises(RuntimeError, match=r"no text to continue \(not started\)"):
            call()
    decoder.start([1, 3])
    with pytest.raises(ValueError, match="3 nodes asked for, 0 drafted"):
        decoder.verify_best(3)
    for _ in range(3):
        decoder.deepen()
    with pytest.raises(RuntimeError, match="all 3 depths are drafted"):
        decoder.deepen()
    with pytest.raises(ValueError, match="5 nodes asked for; the largest budget is 4"):
        decoder.verify_best(5)
    assert EOS in decoder.eos_token_ids


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (DraftShape((1,) * 5, (1,) * 5), "have depth 5; there are only 4 heads"),
        (DraftShape((1, 1), (2, 11)), "11 children at depth 2, but only 10 tokens"),
    ],
)
def test_what_the_heads_cannot_draft(plain, shape, message):
    with pytest.raises(ValueError, match=message):
        staged(plain["hydra"], Stages("s", shape, (0,)))
