import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.analytic_costs import AnalyticCosts
from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.costs import load_costs
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, published_trees
from entmtp_env.trees.frontier import START, candidates
from tests.recordings import BANK, COSTS, accepted, random_recording, seconds
from train.search_replay import RecordedTexts

CAP = 12


def recorded(seed=0, cap=CAP, costs=COSTS, **settings):
    recording = random_recording(np.random.default_rng(seed), texts=9, **settings)
    return RecordedTexts(recording, load_costs(costs), cap, capacity=256)


def walks(source, tree):
    """Text, position and accepted drafts of every step, one after another."""
    recording = source.recording
    for i, text in enumerate(recording.texts):
        length = min(int(recording.lengths[i]), source.max_new_tokens)
        position = 0
        while position < length:
            ranks = recording.ranks[recording.offsets[i] + position].tolist()
            drafts = min(accepted(tree, ranks), length - position - 1)
            yield text, position, drafts
            position += drafts + 1


@pytest.mark.parametrize("cap", [CAP, 5, 1])
@pytest.mark.parametrize("tree", [*BANK, START], ids=lambda tree: tree.name)
def test_scores_are_those_of_each_tree_alone_at_the_steps_of_the_first(tree, cap):
    source = recorded(cap=cap)
    nodes = candidates(tree, 3)
    ticks = []
    rollout = source.rollout(tree, nodes, lambda: ticks.append(0))
    steps = list(walks(source, tree))
    assert (rollout.steps, rollout.accepted) == (len(steps), sum(drafts for *_, drafts in steps))
    assert len(ticks) == 9
    offsets = {text.prompt_id: source.recording.offsets[i] for i, text in enumerate(source.recording.texts)}
    lengths = dict(zip(offsets, np.minimum(source.recording.lengths, cap), strict=True))
    for node in nodes:
        alone = DraftTree("alone", (*tree.nodes, node))
        total = sum(
            min(
                accepted(alone, source.recording.ranks[offsets[text.prompt_id] + position].tolist()),
                lengths[text.prompt_id] - position - 1,
            )
            for text, position, _ in steps
        )
        assert rollout.accepted + rollout.gains[node] == total
        assert rollout.accept_length(node) == total / len(steps)


def test_every_step_has_its_price_and_every_prompt_its_prefill():
    source = recorded()
    runs = source.run(BANK)
    for tree, run in zip(BANK, runs, strict=True):
        steps = list(walks(source, tree))
        assert (run.steps, run.tokens) == (len(steps), sum(drafts + 1 for *_, drafts in steps))
        price = sum(seconds(tree, text.prompt_tokens + position) for text, position, _ in steps)
        assert run.seconds == pytest.approx(price)
        prefill = sum(0.02 + 0.0005 * (text.prompt_tokens - 1) for text in source.recording.texts)
        assert run.prefill_seconds == pytest.approx(prefill)
    assert len({run.tokens for run in runs}) == 1


def table(trees):
    costs = AnalyticCosts(base=0.02, node=0.0005, depth=0.001, context=0.0001)
    contexts = np.array([1, 50])
    priced = costs.at(TopologyBank(trees), contexts)
    return CostTable(
        name="measured",
        trees=tuple(trees),
        contexts=contexts,
        seconds=priced.seconds,
        lower=priced.seconds,
        upper=priced.seconds,
        draft_seconds=priced.draft_seconds,
        verify_seconds=priced.verify_seconds,
        prefill_seconds=priced.prefill_seconds,
        manifest={"probe": "none"},
    )


def test_a_table_with_all_trees_prices_them(capsys):
    source = dataclasses.replace(recorded(), costs=table(BANK.trees))
    assert source.price(BANK) is source
    assert source.manifest["costs"]["label"] == "measured"
    assert capsys.readouterr().err == ""


def test_where_a_table_lacks_a_tree_all_are_priced_by_the_fit(capsys):
    trees = (AUTOREGRESSIVE, DraftTree.chain(1), DraftTree.chain(3), published_trees()["hydra-default"])
    source = dataclasses.replace(recorded(), costs=table(trees))
    priced = source.price(BANK)
    # The table is one that the formula fits exactly.
    for run, exact in zip(priced.run(BANK), recorded().run(BANK), strict=True):
        assert run.seconds == pytest.approx(exact.seconds)
    assert "1 of 4 trees are not in the cost table 'measured'" in capsys.readouterr().err
    assert priced.manifest["costs"]["label"] == "a formula fitted to measured"


def test_costs_of_a_probe_are_refused():
    costs = dataclasses.replace(table((AUTOREGRESSIVE,)), manifest={"probe": "chain"})
    source = dataclasses.replace(recorded(), costs=costs)
    with pytest.raises(ValueError, match="measured with probe='chain'"):
        source.price(BANK).run(BANK)


def test_settings_tell_recordings_apart():
    one, same, other, shorter = recorded(0), recorded(0), recorded(1), recorded(0, cap=5)
    assert one.settings == same.settings
    assert len({str(source.settings) for source in (one, other, shorter)}) == 3
