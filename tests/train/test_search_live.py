import dataclasses

import numpy as np
import pytest

from entmtp_env.replay.costs import load_costs
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, published_trees
from entmtp_env.trees.frontier import candidates
from policies.rollout import run_episode
from tests.recordings import COSTS, record_tiny
from train.journal import Journal
from train.search_live import LiveTexts
from train.search_replay import RecordedTexts
from train.tree_search import search
from train.trees import Trees

CAP = 24
RULES = ("greedy", "sample:temperature=0.8")
TREES = (AUTOREGRESSIVE, DraftTree.chain(3), DraftTree("wide", ((0,), (1,), (2,), (0, 0), (1, 0))))


@pytest.fixture
def settings(tiny_files, tmp_path):
    own = tiny_files.kwargs
    return Trees(
        out=tmp_path / "out",
        budget=5,
        prompts=own["prompts"],
        model=own["model"],
        heads=own["heads"],
        dtype="float32",
        device="cpu",
        max_new_tokens=CAP,
        capacity=256,
    )


def recorded(tiny_files, live, rule):
    seeds = dict(zip(live.prompt_tokens, (seed for _, seed in live.texts), strict=True))
    recording = record_tiny(tiny_files, CAP, rule, seeds)
    return RecordedTexts(recording, load_costs(COSTS), CAP, capacity=256)


@pytest.mark.parametrize("rule", RULES)
def test_live_and_replay_find_the_same_frontier(tiny_files, settings, tmp_path, rule):
    live = LiveTexts.open(dataclasses.replace(settings, acceptance=rule))
    replay = recorded(tiny_files, live, rule)
    found = [
        search(source, 4, settings.budget, Journal(tmp_path / name, {}))
        for name, source in (("live", live), ("replay", replay))
    ]
    assert found[0] == found[1]
    # Not one that the tie rules alone would give.
    assert found[0][-1].accept_length > found[0][0].accept_length > 0


@pytest.mark.parametrize("rule", RULES)
def test_live_and_replay_run_the_same_steps(tiny_files, settings, rule):
    """And so on the same texts as those of the search: a tree's own steps are those of its rollout."""
    live = LiveTexts.open(dataclasses.replace(settings, acceptance=rule))
    bank = TopologyBank(TREES)
    bank.save(live.config.trees_path)
    runs = live.run(bank)
    for tree, run, same in zip(bank, runs, recorded(tiny_files, live, rule).run(bank), strict=True):
        assert (run.tokens, run.steps) == (same.tokens, same.steps)
        assert run.seconds > 0 < run.prefill_seconds
        rollout = live.rollout(tree, candidates(tree, 4), lambda: None)
        assert rollout.steps == run.steps
        assert rollout.accepted == run.tokens - run.steps


def test_smaller_joint_trees_give_the_same_scores(settings):
    tree = DraftTree("T", ((0,), (1,), (0, 0), (1, 0)))
    nodes = candidates(tree, 4)
    whole, parts = (
        LiveTexts.open(dataclasses.replace(settings, max_joint_nodes=joint, num_prompts=2))
        for joint in (99, 8)
    )
    assert whole.rollout(tree, nodes, lambda: None) == parts.rollout(tree, nodes, lambda: None)


def test_typical_is_searched_live(settings, tmp_path):
    rule = "typical:temperature=1.5,epsilon=0.05,alpha=0.3"
    live = LiveTexts.open(dataclasses.replace(settings, acceptance=rule, budget=5))
    found = search(live, 4, 5, Journal(tmp_path / "j", {}))
    assert found[-1].accept_length > found[0].accept_length > 0
    # Its own steps, alone: the first tree's estimate is no estimate.
    bank = TopologyBank([found[0].tree])
    bank.save(live.config.trees_path)
    assert live.run(bank)[1].tau - 1 == pytest.approx(found[0].accept_length)


def test_an_interrupted_timing_goes_on_behind_the_last_prompt(settings, monkeypatch):
    live = LiveTexts.open(settings)
    bank = TopologyBank(TREES)
    bank.save(live.config.trees_path)
    path, begun = settings.out / f"runs-{bank.fingerprint}.jsonl", []

    def stop(env, policy, prompt_id, seed):
        if len(begun) == 7:
            raise KeyboardInterrupt
        begun.append((prompt_id, policy.options["tree"]))
        return run_episode(env, policy, prompt_id, seed)

    monkeypatch.setattr("train.search_live.run_episode", stop)
    with pytest.raises(KeyboardInterrupt):
        live.run(bank)
    kept = Journal(path, live.settings).rows
    assert [row["prompt_id"] for row in kept] == ["t0", "t1"]
    monkeypatch.undo()
    runs = live.run(bank)
    rows = Journal(path, live.settings).rows
    assert rows[:2] == kept
    assert [row["prompt_id"] for row in rows] == [f"t{i}" for i in range(6)]
    total = np.sum([row["runs"] for row in rows], axis=0)
    for run, (tokens, steps, seconds, prefill) in zip(runs, total, strict=True):
        assert (run.tokens, run.steps, run.seconds, run.prefill_seconds) == (tokens, steps, seconds, prefill)
    # Prompt by prompt, every tree once, not always in the same order.
    assert [prompt_id for prompt_id, _ in begun] == ["t0"] * 3 + ["t1"] * 3 + ["t2"]
    assert {tree for _, tree in begun[:3]} == {tree.name for tree in TREES}


def test_more_nodes_than_can_be_drafted(settings):
    with pytest.raises(ValueError, match="budget=21, but the heads draft only 20 different tokens"):
        LiveTexts.open(dataclasses.replace(settings, budget=21))


def test_settings_name_what_accept_lengths_depend_on(settings):
    live = LiveTexts.open(dataclasses.replace(settings, num_prompts=2))
    assert live.count == 2
    assert live.settings["prompt_ids"] == ["t0", "t1"]
    assert {"model_fingerprint", "heads_fingerprint", "dtype", "acceptance", "seed"} <= live.settings.keys()
    assert live.depth == max(tree.depth for tree in published_trees().values())
