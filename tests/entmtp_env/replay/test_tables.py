from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.tables import STOP_REASONS, ReplayTables
from entmtp_env.trees import TopologyBank
from tests.recordings import BANK, COSTS, accepted, random_recording, seconds


def reference(recording, cap, capacity, text, position):
    """Why a text has ended when a step reaches a position, and what each tree of the bank adds there."""
    length, told = int(recording.lengths[text]), recording.texts[text]
    context = told.prompt_tokens + position
    if position == length and position <= cap and told.finish_reason == "eos":
        return "eos", None
    if position == cap:
        return "length", None
    if position == length or context + 1 + BANK.max_nodes > capacity:
        return "context", None
    ranks = recording.ranks[recording.offsets[text] + position]
    room = min(cap, length) - position
    return "", [min(accepted(tree, ranks) + 1, room) for tree in BANK]


@given(seed=st.integers(0, 2**32 - 1), cap=st.integers(1, 9), capacity=st.integers(13, 30))
def test_every_position_against_the_definitions(seed, cap, capacity):
    recording = random_recording(np.random.default_rng(seed), longest=9, cap=9)
    tables = ReplayTables.build(recording, load_costs(COSTS), BANK, cap, capacity)
    for text, told in enumerate(recording.texts):
        for position in range(min(cap, recording.lengths[text]) + 1):
            row = tables.starts[text] + position
            reason, emitted = reference(recording, cap, capacity, text, position)
            assert STOP_REASONS[tables.stops[row]] == reason
            assert tables.positions[row] == position
            if reason:
                continue
            assert tables.emitted[:, row].tolist() == emitted
            context = told.prompt_tokens + position
            assert tables.contexts[row] == context
            prices = tables.costs.seconds[:, context]
            assert prices.tolist() == pytest.approx([seconds(tree, context) for tree in BANK])
        assert tables.ends[text] == tables.starts[text] + min(cap, recording.lengths[text])


def test_prices_are_the_costs_of_one_step():
    recording = random_recording(np.random.default_rng(0))
    tables = ReplayTables.build(recording, load_costs(COSTS), BANK, capacity=30)
    longest = max(t.prompt_tokens + n for t, n in zip(recording.texts, recording.lengths, strict=True))
    for k, tree in enumerate(BANK):
        assert len(tables.prices[k]) == longest + 1 < 31
        for context in range(longest + 1):
            both, draft, verify = tables.prices[k][context]
            assert both == pytest.approx(seconds(tree, context))
            assert draft == tables.costs.draft_seconds[k, context]
            assert verify == tables.costs.verify_seconds[k, context]


def test_a_text_that_ran_out_of_context_when_recorded():
    recording = random_recording(np.random.default_rng(0), longest=5, cap=9)
    texts = tuple(replace(text, finish_reason="context") for text in recording.texts)
    tables = ReplayTables.build(replace(recording, texts=texts), load_costs(COSTS), BANK)
    assert [STOP_REASONS[code] for code in tables.stops[tables.ends]] == ["context"] * 3


def test_the_caps_of_the_recording_are_the_default():
    recording = random_recording(np.random.default_rng(0))
    assert ReplayTables.build(recording, load_costs(COSTS), BANK).max_new_tokens == 12


@pytest.mark.parametrize("cap", [0, -1, 13])
def test_a_cap_beyond_the_recorded_one_is_refused(cap):
    recording = random_recording(np.random.default_rng(0))
    with pytest.raises(ValueError, match=rf"max_new_tokens={cap} must be 1 to 12.*train record"):
        ReplayTables.build(recording, load_costs(COSTS), BANK, cap)


def test_a_bank_deeper_than_the_recorded_heads_is_refused():
    recording = random_recording(np.random.default_rng(0), depth=2)
    with pytest.raises(ValueError, match="'bank' has depth 3, the recording only 2 heads"):
        ReplayTables.build(recording, load_costs(COSTS), BANK)


def test_a_prompt_that_does_not_fit_is_named():
    recording = random_recording(np.random.default_rng(0))
    longest = max(recording.texts, key=lambda text: text.prompt_tokens)
    least = longest.prompt_tokens + 1 + BANK.max_nodes
    ReplayTables.build(recording, load_costs(COSTS), BANK, capacity=least)
    with pytest.raises(ValueError, match=rf"prompt '{longest.prompt_id}'.*{least - 1} KV rows.*capacity"):
        ReplayTables.build(recording, load_costs(COSTS), BANK, capacity=least - 1)


def test_texts_that_the_cache_may_end_are_named():
    recording = random_recording(np.random.default_rng(0), texts=6)
    prompts = np.array([text.prompt_tokens for text in recording.texts])
    # What the last step of each needs, which begins a token before the end.
    needed = prompts + recording.lengths + BANK.max_nodes
    capacity = int(max(np.sort(needed)[-2], prompts.max() + 1 + BANK.max_nodes))
    whole, cut = (ReplayTables.build(recording, load_costs(COSTS), BANK, capacity=n) for n in (99, capacity))
    whole.check_lengths()
    long = int(needed.argmax())
    assert needed[long] > capacity
    cut.check_lengths([i for i in range(6) if i != long])
    for texts in (None, [long]):
        with pytest.raises(ValueError, match=rf"text 't{long}' of .* do not fit into {capacity} KV rows"):
            cut.check_lengths(texts)


@pytest.mark.parametrize(
    ("measured", "probe", "fits"), [(None, "chain", 1), ("chain", "chain", 1), ("none", "chain", 0)]
)
def test_costs_of_another_probe_are_refused(measured, probe, fits):
    recording, plain = random_recording(np.random.default_rng(0)), load_costs(COSTS)
    costs = SimpleNamespace(name="mine", probe=measured, manifest={}, at=plain.at)
    if fits:
        assert ReplayTables.build(recording, costs, BANK, probe=probe).costs.seconds.min() > 0
    else:
        with pytest.raises(ValueError, match=r"'mine' were measured with probe='none', not 'chain'.*--probe"):
            ReplayTables.build(recording, costs, BANK, probe=probe)


def test_the_empty_tree_alone_is_a_bank():
    recording = random_recording(np.random.default_rng(0))
    tables = ReplayTables.build(recording, load_costs(COSTS), TopologyBank([]))
    assert (tables.accepts == 0).all()
