from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule, TreeDecoder, TypicalRule
from entmtp_env.decoding.acceptance import Verdict
from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank, published_trees
from tests.tiny import EOS, random_tree, tiny_backbone, tiny_decoder, tiny_heads, tiny_model

ARCHS = ("medusa", "hydra", "hydra-prefix")
BANK = default_bank()
BIG = published_trees()["hydra-default"]
PROBES = {"none": None, "first": DraftTree.chain(1), "chain": DraftTree.chain(4), "union": BANK.union}
RULES = {"greedy": GreedyRule, "sample": SampleRule}
# So small a vocabulary that 10 children of a node hold the next token: deep paths are accepted.
VOCAB, CAP, SEED = 10, 16, 8
PROMPTS = [[1 + seed % 9, 3, *range(3, 3 + seed % 4)] for seed in range(14)]


@pytest.fixture(scope="module")
def decoders():
    settings = {"seed": SEED, "capacity": 128, "draft_vocab": VOCAB, "vocab_size": VOCAB}
    return {arch: tiny_decoder(arch, **settings) for arch in ARCHS}


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=SEED, vocab_size=VOCAB)


def run(decoder, prompt, trees, rule=None, probe=None, cap=CAP, seed=0):
    """Decode one text; ``trees()`` gives the next tree. Checks what holds of every step."""
    decoder.start(prompt, rule, max_new_tokens=cap, seed=seed)
    steps = []
    while not decoder.finish_reason:
        if probe is not None:
            decoder.probe(probe)
        step = decoder.step(trees())
        steps.append(step)
        # Trap 10: accept counts add up to the text.
        assert step.accept_length + 1 == len(step.tokens)
        assert step.finish_reason == decoder.finish_reason
        assert decoder.length == len(prompt) + len(decoder.tokens) <= decoder.capacity
        parts = [step.draft_seconds, step.verify_seconds, step.accept_seconds, step.commit_seconds]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(step.seconds)
    assert decoder.tokens == [token for step in steps for token in step.tokens]
    assert sum(step.accept_length + 1 for step in steps) == len(decoder.tokens) <= cap
    return decoder.tokens, decoder.finish_reason, steps


def autoregressive(decoder, prompt, rule=None, cap=CAP, seed=0):
    return run(decoder, prompt, lambda: AUTOREGRESSIVE, rule, cap=cap, seed=seed)[:2]


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("arch", ARCHS)
def test_texts_do_not_depend_on_the_trees(decoders, arch, rule, probe):
    """Every tree of the bank, and another at every step: the text of autoregressive decoding."""
    decoder, random = decoders[arch], Random(0)
    accepted, reasons = Counter(), Counter()
    for seed, prompt in enumerate(PROMPTS):
        expected = autoregressive(decoder, prompt, RULES[rule](), seed=seed)
        schedules = [lambda: random.choice(BANK.trees)]
        schedules += [lambda tree=tree: tree for tree in (BANK if seed < 3 else [BIG])]
        for schedule in schedules:
            *text, steps = run(decoder, prompt, schedule, RULES[rule](), PROBES[probe], seed=seed)
            assert tuple(text) == expected
            accepted.update(step.accept_length for step in steps)
        reasons[expected[1]] += 1
    # Not vacuous: deep paths and branches were accepted, and texts ended in both ways.
    assert {0, 1, 2, 3} <= set(accepted)
    assert set(reasons) == {"eos", "length"}


@settings(max_examples=20, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_random_trees_do_not_change_the_text(decoders, random, sizes, seed):
    trees = [random_tree(random, size) for size in sizes]
    for decoder in decoders.values():
        expected = autoregressive(decoder, [seed % VOCAB], SampleRule(), seed=seed)
        text = run(decoder, [seed % VOCAB], lambda: random.choice(trees), SampleRule(), trees[0], seed=seed)
        assert text[:2] == expected


def test_greedy_equals_transformers_generate(decoders, model):
    reasons = set()
    for prompt in PROMPTS:
        out = model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=CAP, eos_token_id=EOS, pad_token_id=0
        )
        tokens, reason = autoregressive(decoders["hydra"], prompt)
        assert tokens == out[0, len(prompt) :].tolist()
        assert reason == ("eos" if tokens[-1] == EOS else "length")
        reasons.add(reason)
    assert reasons == {"eos", "length"}


@torch.no_grad()
def test_sample_equals_gumbel_max_on_transformers_logits(decoders, model):
    for seed, prompt in enumerate(PROMPTS[:6]):
        text = list(prompt)
        while len(text) < len(prompt) + CAP and text[-1] != EOS:
            logits = model(torch.tensor([text])).logits[0, -1].numpy()
            text.append(int(np.argmax(logits / 0.8 + gumbel_noise(seed, len(text), VOCAB))))
        tokens, _ = autoregressive(decoders["medusa"], prompt, SampleRule(0.8), seed=seed)
        assert tokens == text[len(prompt) :]


def test_seeds_give_different_samples(decoders):
    texts = {tuple(autoregressive(decoders["hydra"], [5], SampleRule(), seed=seed)[0]) for seed in range(8)}
    assert len(texts) > 4


def test_typical_ends_and_adds_up_and_its_first_root_is_the_arg_max(decoders):
    for prompt in PROMPTS:
        tokens, _, _ = run(decoders["hydra-prefix"], prompt, lambda: BIG, TypicalRule())
        assert tokens[0] == autoregressive(decoders["hydra-prefix"], prompt, cap=1)[0][0]
    assert autoregressive(decoders["hydra"], [1, 3], TypicalRule()) == autoregressive(
        decoders["hydra"], [1, 3]
    )


def test_eos_inside_a_block_ends_the_text_at_eos(decoders):
    """Trap 8: drafts accepted behind EOS do not join the text."""
    decoder = decoders["medusa"]
    endless = TreeDecoder(decoder.backbone, decoder.heads, capacity=128)
    inside = behind = 0
    for seed in range(60):
        tokens, reason, steps = run(decoder, [seed % VOCAB], lambda: BIG, SampleRule(), cap=8, seed=seed)
        assert (EOS in tokens) == (reason == "eos")
        if reason == "eos":
            assert tokens.index(EOS) == len(tokens) - 1
            inside += steps[-1].accept_length > 0
            uncut = run(endless, [seed % VOCAB], lambda: BIG, SampleRule(), cap=13, seed=seed)[2][
                len(steps) - 1
            ]
            behind += uncut.accept_length > steps[-1].accept_length
    assert inside > 5
    assert behind > 0


@pytest.mark.parametrize("cap", range(1, 9))
def test_the_token_cap_is_exact(decoders, cap):
    """Trap 9: the last block is cut."""
    endless = TreeDecoder(decoders["hydra"].backbone, decoders["hydra"].heads, capacity=128)
    cut = 0
    for prompt in PROMPTS:
        tokens, reason, steps = run(endless, prompt, lambda: BIG, cap=cap)
        uncut, _, uncut_steps = run(endless, prompt, lambda: BIG, cap=cap + 5)
        assert (len(tokens), reason) == (cap, "length")
        assert tokens == uncut[:cap]
        cut += uncut_steps[len(steps) - 1].accept_length > steps[-1].accept_length
    assert cut > 0


@pytest.mark.parametrize("capacity", [70, 71, 75, 80])
def test_a_full_cache_ends_the_text_and_never_overflows(decoders, capacity):
    decoder = TreeDecoder(decoders["hydra"].backbone, decoders["hydra"].heads, capacity=capacity)
    tokens, reason, _ = run(decoder, [1, 3, 5], lambda: BIG, cap=1000)
    assert reason == "context"
    # The next step would need a row for the root and 63 for the tree; before the last one, they were there.
    assert decoder.length + 64 > capacity
    assert tokens == autoregressive(decoders["hydra"], [1, 3, 5])[0][: len(tokens)] or EOS in tokens
    with pytest.raises(RuntimeError, match=r"no text to continue \(context\)"):
        decoder.step(AUTOREGRESSIVE)


def test_the_smallest_session_holds_one_step(decoders):
    backbone, heads = decoders["hydra"].backbone, decoders["hydra"].heads
    decoder = TreeDecoder(backbone, heads, capacity=66)
    decoder.start([1, 3])
    decoder.step(BIG)
    with pytest.raises(ValueError, match="3 tokens and a tree of 63 nodes do not fit into 66"):
        decoder.start([1, 3, 5])


@pytest.mark.parametrize(("spare", "steps"), [(-1, 0), (0, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("tree", [BIG, DraftTree.chain(2)], ids=["big", "small"])
def test_a_step_is_begun_exactly_when_the_cache_has_room_for_it(decoders, tree, spare, steps):
    """Root and tree need ``max_nodes + 1`` rows; a step that accepts nothing leaves one row behind."""
    prompt, heads = [1, 3, 5], decoders["hydra"].heads
    capacity = len(prompt) + 1 + len(tree) + spare
    decoder = TreeDecoder(
        decoders["hydra"].backbone, heads, capacity=capacity, max_nodes=len(tree), eos_token_ids=frozenset()
    )
    if not steps:
        with pytest.raises(ValueError, match=f"do not fit into {capacity} KV rows"):
            decoder.start(prompt)
        return
    tokens, reason, taken = run(decoder, prompt, lambda: AUTOREGRESSIVE, cap=1000)
    assert (len(taken), reason) == (steps, "context")
    drafted, reason, _ = run(decoder, prompt, lambda: tree, cap=1000)
    assert reason == "context"
    assert drafted[:steps] == tokens[: len(drafted)]
    assert len(prompt) + len(drafted) + 1 + len(tree) > capacity


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rule", [GreedyRule, SampleRule, TypicalRule])
def test_logits_that_are_not_finite_stop_the_text(decoders, monkeypatch, rule, value):
    decoder = decoders["hydra"]
    expected = autoregressive(decoder, [1, 3], rule())
    logits, calls = decoder.backbone.logits, []

    def spoilt(hidden):
        calls.append(1)
        result = logits(hidden)
        if len(calls) >= spoilt.at:
            result[:, 5] = value
        return result

    monkeypatch.setattr(decoder.backbone, "logits", spoilt)
    spoilt.at = 1
    with pytest.raises(FloatingPointError, match=r"behind 0 generated tokens .* float32"):
        decoder.start([1, 3], rule())
    with pytest.raises(RuntimeError, match="no text to continue"):
        decoder.step(AUTOREGRESSIVE)
    spoilt.at, calls[:] = 4, []
    decoder.start([1, 3], rule(), max_new_tokens=CAP)
    whole = [*decoder.step(AUTOREGRESSIVE).tokens, *decoder.step(AUTOREGRESSIVE).tokens]
    with pytest.raises(FloatingPointError, match="behind 3 generated tokens"):
        decoder.step(AUTOREGRESSIVE)
    # The text is what the steps told of.
    assert decoder.tokens == whole == expected[0][:2]
    with pytest.raises(RuntimeError, match=r"no text to continue \(logits not finite\)"):
        decoder.step(AUTOREGRESSIVE)
    monkeypatch.undo()
    assert autoregressive(decoder, [1, 3], rule()) == expected


def test_rejected_drafts_may_have_any_logits(decoders, monkeypatch):
    """Only the row that the next root comes from is looked at."""
    decoder, tree = decoders["hydra"], DraftTree("fan", tuple((rank,) for rank in range(VOCAB)))
    expected, logits = autoregressive(decoder, [1, 3]), decoder.backbone.logits

    def spoilt(hidden):
        result = logits(hidden)
        if len(result) > 1:
            wrong = decoder.draft(tree).tokens != int(result[0].argmax())
            result[1:][wrong] = np.nan
        return result

    decoder.start([1, 3], max_new_tokens=CAP)
    monkeypatch.setattr(decoder.backbone, "logits", spoilt)
    while not decoder.finish_reason:
        decoder.step(tree)
    assert (decoder.tokens, decoder.finish_reason) == expected


def test_a_start_after_an_unfinished_text_is_fresh(decoders):
    """Trap 6."""
    for decoder in decoders.values():
        expected = run(decoder, [4, 4], lambda: BIG)[:2]
        decoder.start([7, 1, 2, 3, 4, 5], SampleRule(), seed=9)
        decoder.probe(PROBES["union"])
        decoder.step(BIG)
        decoder.probe(PROBES["union"])
        assert run(decoder, [4, 4], lambda: BIG)[:2] == expected


def test_a_probe_of_the_last_text_costs_the_next_one_nothing(decoders):
    decoder = decoders["hydra"]
    decoder.start([1, 3])
    decoder.probe(BIG)
    decoder._probe_seconds = 1000.0
    decoder.start([1, 3])
    assert decoder.step(BIG).seconds < 500


def test_a_probe_counts_as_time_of_its_step_only(decoders):
    decoder = decoders["hydra"]
    decoder.start([1, 3])
    decoder.probe(BIG)
    decoder._probe_seconds = 1000.0
    step = decoder.step(BIG)
    assert min(step.seconds, step.draft_seconds) >= 1000
    assert decoder.step(BIG).seconds < 500


def test_plans_built_at_first_use_change_nothing(decoders):
    """A decoder that meets every tree for the first time, against one that has used them all."""
    used = decoders["hydra-prefix"]
    for tree in BANK:
        for probe in PROBES.values():
            run(used, [1], lambda tree=tree: tree, probe=probe, cap=3)
    fresh = TreeDecoder(used.backbone, used.heads, capacity=128, eos_token_ids=used.eos_token_ids)
    for tree in BANK:
        first, later = (
            run(decoder, [6, 3], lambda tree=tree: tree, TypicalRule()) for decoder in (fresh, used)
        )
        assert first[:2] == later[:2]
        assert [s.accept_length for s in first[2]] == [s.accept_length for s in later[2]]


def test_first_draft_right_says_whether_the_greedy_draft_stood(decoders):
    decoder, seen = decoders["hydra"], set()
    for prompt in PROMPTS:
        reference = autoregressive(decoder, prompt, cap=CAP + 1)[0]
        decoder.start(prompt, max_new_tokens=CAP)
        while not decoder.finish_reason and len(decoder.tokens) + 1 < len(reference):
            truth = reference[len(decoder.tokens) + 1]
            decoder.probe(BIG)
            right = int(decoder._probe.tokens[0]) == truth
            assert decoder.step(BIG).first_draft_right == right
            seen.add(right)
    assert seen == {True, False}
    decoder.start([1])
    assert decoder.step(AUTOREGRESSIVE).first_draft_right is None


def test_base_signals_describe_the_root(decoders, model):
    decoder = decoders["hydra"]
    decoder.start([1, 3, 5])
    for _ in range(3):
        with torch.no_grad():
            logits = model(torch.tensor([[1, 3, 5, *decoder.tokens]])).logits[0, -1]
        distribution = torch.distributions.Categorical(logits=logits)
        top1, entropy = decoder.base_signals()
        assert top1 == pytest.approx(float(distribution.probs.max()), rel=1e-3)
        assert entropy == pytest.approx(float(distribution.entropy()) / np.log(VOCAB), rel=1e-3)
        assert decoder.root == int(logits.argmax())
        decoder.step(BIG)


def test_head_signals_are_the_last_drafts(decoders):
    decoder = decoders["hydra-prefix"]
    decoder.start([1, 3])
    assert decoder.head_signals() == ([], [])
    decoder.step(DraftTree.chain(2))
    lagged = decoder.head_signals()
    assert [len(values) for values in lagged] == [2, 2]
    decoder.step(AUTOREGRESSIVE)
    assert decoder.head_signals() == lagged
    decoder.probe(DraftTree.chain(4))
    assert [len(values) for values in decoder.head_signals()] == [4, 4]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_state_is_that_of_the_whole_text_whenever_it_is_asked_for(decoders, arch):
    decoder, choose = decoders[arch], Random(3)
    backbone, prefix = decoder.backbone, decoder.heads.prefix
    for prompt in PROMPTS:
        decoder.start(prompt, max_new_tokens=CAP)
        while not decoder.finish_reason:
            decoder.step(choose.choice([AUTOREGRESSIVE, AUTOREGRESSIVE, DraftTree.chain(2), BIG]))
            if choose.random() < 0.5:
                with torch.inference_mode():
                    whole = backbone.forward_batch(torch.tensor([[*prompt, *decoder.tokens]]))
                    expected = (whole if prefix is None else prefix(whole))[0, -1]
                assert torch.allclose(decoder.state, expected, atol=1e-5)


def test_the_prefix_layer_reads_when_something_is_drafted(decoders, monkeypatch):
    decoder = decoders["hydra-prefix"]
    prefix, read = decoder.heads.prefix, []
    forward = prefix.forward
    monkeypatch.setattr(prefix, "forward", lambda x, cache: (read.append(x.shape[1]), forward(x, cache))[1])
    decoder.start([1, 3, 5])
    assert read == [3]
    for _ in range(3):
        decoder.step(AUTOREGRESSIVE)
    assert read == [3]
    kept = len(decoder.step(DraftTree.chain(2)).tokens)
    assert read == [3, 3]
    decoder.probe(BIG)
    decoder.step(BIG)
    assert read == [3, 3, kept]
    # What the last text left behind is not read with the next one.
    decoder.start([6, 3])
    assert read == [3, 3, kept, 2]


def test_probe_values_belong_to_the_probe(decoders):
    decoder = decoders["hydra"]
    decoder.start([1, 3])
    with pytest.raises(RuntimeError, match="no probe"):
        decoder.probe_values()
    decoder.probe(BANK.union)
    values = decoder.probe_values()
    assert values.shape == (len(BANK.union),)
    assert torch.all((values > 0) & (values <= 1))
    decoder.step(BIG)
    with pytest.raises(RuntimeError, match="no probe"):
        decoder.probe_values()


def test_step_and_probe_need_a_running_text(decoders):
    decoder = TreeDecoder(decoders["hydra"].backbone, decoders["hydra"].heads, capacity=80)
    for call in (decoder.step, decoder.probe):
        with pytest.raises(RuntimeError, match=r"not started\); call start\(\) first"):
            call(BIG)
    run(decoder, [1], lambda: BIG, cap=1)
    for call in (decoder.step, decoder.probe):
        with pytest.raises(RuntimeError, match=r"\(length\)"):
            call(BIG)


def test_trees_that_cannot_be_drafted_are_refused(decoders):
    """Traps 2 and 3; the text goes on afterwards as if nothing had been asked."""
    decoder = decoders["hydra"]
    expected = autoregressive(decoder, [1, 3])
    wide = DraftTree("wide", tuple((rank,) for rank in range(VOCAB + 1)))
    decoder.start([1, 3], max_new_tokens=CAP)
    for call in (decoder.step, decoder.probe):
        with pytest.raises(ValueError, match="'chain-5' has depth 5, but there are 4 draft heads"):
            call(DraftTree.chain(5))
        with pytest.raises(ValueError, match="'wide' asks for 11 children of a node, but only 10 tokens"):
            call(wide)
    while not decoder.finish_reason:
        decoder.step(BIG)
    assert (decoder.tokens, decoder.finish_reason) == expected


def test_as_many_children_as_draftable_tokens_are_allowed(decoders):
    wide = DraftTree("wide", tuple((rank,) for rank in range(VOCAB)))
    assert run(decoders["hydra"], [1, 3], lambda: wide)[:2] == autoregressive(decoders["hydra"], [1, 3])


def test_trees_beyond_max_nodes_may_be_probed_but_not_verified(decoders):
    decoder = TreeDecoder(decoders["hydra"].backbone, decoders["hydra"].heads, capacity=40, max_nodes=8)
    decoder.start([1, 3])
    decoder.probe(BANK.union)
    with pytest.raises(ValueError, match="'hydra-default' has 63 nodes; this decoder was made for 8"):
        decoder.step(BIG)
    decoder.step(DraftTree.chain(4))


def test_gaps_between_siblings_cannot_be_expressed():
    """Trap 4; and trap 1 has no place, for there are no padded retrieve indices."""
    with pytest.raises(ValueError, match=r"needs its sibling \(1,\)"):
        DraftTree("gap", ((0,), (2,)))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([[1, 2], [3, 4]], "batch size 1 only"),
        (torch.tensor([[1, 2]]), "batch size 1 only"),
        ([], "got 0 tokens"),
        ([1, VOCAB], r"prompt ids must be 0\.\.9, got 1\.\.10"),
        ([-1, 2], r"got -1\.\.2"),
    ],
)
def test_bad_prompts_are_refused(decoders, prompt, message):
    """Trap 5: a batch is refused, not silently wrong."""
    with pytest.raises(ValueError, match=message):
        decoders["hydra"].start(prompt)


def test_a_cap_of_zero_is_refused(decoders):
    with pytest.raises(ValueError, match="cap 0"):
        decoders["hydra"].start([1], max_new_tokens=0)


def test_heads_of_bfloat16_decode_the_text_of_their_base():
    backbone = tiny_backbone(dtype=torch.bfloat16)
    decoder = TreeDecoder(backbone, tiny_heads(backbone), capacity=128)
    decoder.start([1, 3], max_new_tokens=CAP)
    while not decoder.finish_reason:
        decoder.probe(DraftTree.chain(4))
        decoder.step(BIG)
    assert len(decoder.tokens) == CAP
    # Each token is, up to rounding, the arg max of the base given those before it.
    hidden = backbone.forward_batch(torch.tensor([[1, 3, *decoder.tokens]]))[0, 1:-1]
    logits = backbone.logits(hidden).float()
    chosen = logits.gather(1, torch.tensor(decoder.tokens)[:, None])[:, 0]
    assert torch.all(chosen > logits.amax(-1) - 0.1 * logits.std())


@pytest.mark.parametrize("rule", [GreedyRule, SampleRule, TypicalRule])
def test_a_step_in_pieces_is_a_step(decoders, rule):
    decoder = decoders["hydra-prefix"]
    for seed, prompt in enumerate(PROMPTS[:4]):
        *expected, steps = run(decoder, prompt, lambda: BIG, rule(), seed=seed)
        own = rule()
        decoder.start(prompt, own, max_new_tokens=CAP, seed=seed)
        for step in steps:
            # Verified before, and not committed: it leaves no trace.
            decoder.verify(decoder.draft(DraftTree.chain(3)))
            tokens, hidden, logits = decoder.verify(decoder.draft(BIG))
            verdict = own.judge(BIG, tokens, logits, decoder.length)
            assert decoder.cut(verdict, tokens) == (step.tokens, step.finish_reason)
            assert decoder.commit(verdict, tokens, hidden, logits) == step.tokens
        assert [decoder.tokens, decoder.finish_reason] == expected
    with pytest.raises(RuntimeError, match="no text to continue"):
        decoder.draft(BIG)


def test_less_than_was_accepted_may_be_committed(decoders):
    """The text stays autoregressive decoding's when only the root, or half of a path, joins it."""
    decoder, shortened = decoders["hydra-prefix"], 0
    for prompt in PROMPTS:
        expected = autoregressive(decoder, prompt)
        decoder.start(prompt, max_new_tokens=CAP)
        while not decoder.finish_reason:
            tokens, hidden, logits = decoder.verify(decoder.draft(BIG))
            whole = GreedyRule().judge(BIG, tokens, logits, decoder.length)
            kept = (len(whole.rows) + 1) // 2
            shortened += kept < len(whole.rows)
            verdict = Verdict(whole.rows[:kept], whole.next_tokens[:kept], None)
            decoder.commit(verdict, tokens, hidden, logits)
        assert (decoder.tokens, decoder.finish_reason) == expected
    assert shortened > 9
