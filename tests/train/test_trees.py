import dataclasses
import json

import numpy as np
import pytest

from entmtp_env.replay.recording import Recording
from entmtp_env.trees import TopologyBank
from entmtp_env.trees.frontier import pareto_hull
from entmtp_env.trees.walk import accept_lengths
from tests.recordings import COSTS, random_recording, record_tiny
from train.joint_tree import joint_step
from train.trees import Trees, search_trees


@pytest.fixture
def replay(tmp_path):
    random_recording(np.random.default_rng(0), texts=12, depth=4).save(tmp_path / "texts.npz")
    return Trees(
        out=tmp_path / "out",
        source="replay",
        recordings=(str(tmp_path / "texts.npz"),),
        costs=COSTS,
        budget=6,
        max_new_tokens=12,
        bank_out=tmp_path / "hull.json",
    )


@pytest.fixture
def live(tiny_files, tmp_path):
    own = tiny_files.kwargs
    return Trees(
        out=tmp_path / "out",
        budget=3,
        num_prompts=2,
        max_new_tokens=8,
        capacity=256,
        prompts=own["prompts"],
        model=own["model"],
        heads=own["heads"],
        dtype="float32",
        device="cpu",
    )


def test_all_files_are_written(replay, capsys):
    trees = search_trees(replay)
    assert [own.kind for own in trees] == ["autoregressive", *["greedy"] * 6, *["published"] * 3]
    result = json.loads((replay.out / "frontier.json").read_text())
    assert [row["name"] for row in result["trees"]] == [own.tree.name for own in trees]
    hull = pareto_hull(
        [row["size"] for row in result["trees"]], [r["tokens_per_second"] for r in result["trees"]]
    )
    assert result["hull"] == [result["trees"][i]["name"] for i in hull]
    assert result["entmtp_star"] == max(result["trees"], key=lambda row: row["tokens_per_second"])["name"]
    biases = {row["name"]: row["bias"] for row in result["trees"] if row["kind"] == "greedy"}
    worst = result["most_biased"]
    assert worst["bias"] == biases[worst["name"]] == max(biases.values(), key=abs)
    manifest = result["manifest"]
    assert {"machine", "command", "settings", "model_fingerprint", "costs", "depth"} <= manifest.keys()
    assert (replay.out / "frontier.png").read_bytes().startswith(b"\x89PNG")
    bank = TopologyBank.load(replay.bank_out)
    assert list(bank.names) == result["hull"]
    assert len(bank[0]) == 0
    assert [tree.name for tree in TopologyBank.load(replay.trees_path)] == [own.tree.name for own in trees]
    out = capsys.readouterr().out
    assert "★" in out
    assert f"EntMTP*: {result['entmtp_star']}" in out


def test_the_searched_trees_are_the_ones_run(replay):
    trees = search_trees(replay)
    for size, own in enumerate(trees[1:7], start=1):
        assert len(own.tree) == size
        assert own.estimate is not None
    # The first tree's estimate is its own run.
    assert trees[1].bias == pytest.approx(0)


def test_optimal_trees_stand_beside_the_greedy_ones(replay, capsys):
    trees = search_trees(dataclasses.replace(replay, method="optimal"))
    assert {own.kind for own in trees} == {"autoregressive", "greedy", "optimal", "published"}
    texts = Recording.load(replay.recordings[0])
    inside = np.delete(texts.ranks, texts.offsets[1:] - 1, axis=0)
    for size in range(1, 7):
        optimal = [own for own in trees if own.kind == "optimal" and len(own.tree) == size]
        for own in optimal:
            assert own.estimate == accept_lengths(own.tree, inside).mean()
        greedy = next(own.tree for own in trees if own.kind == "greedy" and len(own.tree) == size)
        # At all positions of the texts, not only at the steps of a tree, none of the size accepts more.
        assert max(own.estimate for own in optimal) >= accept_lengths(greedy, inside).mean()
    assert "what the greedy search leaves" in capsys.readouterr().out


def test_depth_sizes_and_texts_can_be_limited(replay):
    trees = search_trees(dataclasses.replace(replay, depth=1, sizes=(2, 5), num_prompts=3, method="optimal"))
    searched = [own.tree for own in trees if own.kind in ("greedy", "optimal")]
    assert {tree.depth for tree in searched} == {1}
    assert [len(own.tree) for own in trees if own.kind == "greedy"] == [2, 5]
    result = json.loads((replay.out / "frontier.json").read_text())
    assert result["manifest"]["prompt_ids"] == ["t0", "t1", "t2"]


def test_an_approximate_recording_is_labelled(replay, tmp_path, capsys):
    recording = random_recording(np.random.default_rng(0), depth=4)
    manifest = recording.manifest | {"approximate": True, "acceptance": "typical"}
    dataclasses.replace(recording, manifest=manifest).save(tmp_path / "texts.npz")
    search_trees(replay)
    assert "approximate" in capsys.readouterr().out
    assert json.loads((replay.out / "frontier.json").read_text())["manifest"]["approximate"] is True


def test_live_from_prompts_to_files(live, monkeypatch):
    """Interrupted in the middle and resumed: the frontier of a search that was not."""
    whole = search_trees(live)
    parts = dataclasses.replace(live, out=live.out.with_name("parts"))
    rollouts = []

    def stop(*args):
        rollouts.append(args)
        if len(rollouts) == 20:
            raise KeyboardInterrupt
        return joint_step(*args)

    monkeypatch.setattr("train.search_live.joint_step", stop)
    with pytest.raises(KeyboardInterrupt):
        search_trees(parts)
    monkeypatch.undo()
    assert len((parts.out / "search.jsonl").read_text().splitlines()) > 1
    resumed = search_trees(parts)
    assert [(own.tree, own.estimate) for own in resumed] == [(own.tree, own.estimate) for own in whole]
    assert (parts.out / "search.jsonl").read_text() == (live.out / "search.jsonl").read_text()


def test_the_same_command_again_measures_nothing_anew(live, monkeypatch):
    first = search_trees(live)
    monkeypatch.setattr("train.search_live.joint_step", None)
    monkeypatch.setattr("train.search_live.run_episode", None)
    assert search_trees(live) == first


def test_a_larger_budget_goes_on(live):
    small = search_trees(live)
    large = search_trees(dataclasses.replace(live, budget=4))
    assert [own.tree for own in large[:4]] == [own.tree for own in small[:4]]
    assert [own.tree.name for own in large[4:5]] == ["greedy-4"]


def test_other_settings_do_not_go_on_in_the_same_folder(replay):
    search_trees(replay)
    with pytest.raises(ValueError, match="depth was 4 and is 2; go on with those, or give another --out"):
        search_trees(dataclasses.replace(replay, depth=2))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"budget": 0}, "budget must be at least 1, got 0"),
        ({"depth": -1}, "depth must be at least 0"),
        ({"num_prompts": -1}, "num_prompts must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"max_joint_nodes": 5}, "max_joint_nodes=5 must be at least the budget, 6"),
        ({"sizes": (7,)}, r"sizes must be 1 to the budget, 6, got \(7,\)"),
        ({"recordings": ()}, "name --recordings"),
        ({"source": "live"}, "name --recordings"),
        ({"source": "live", "recordings": (), "method": "optimal"}, "use --source replay"),
    ],
)
def test_settings_that_search_nothing(replay, overrides, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(replay, **overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"depth": 5}, "depth=5 is beyond the 4 draft heads"),
        ({"num_prompts": 13}, "num_prompts=13, but the recording has only 12"),
        ({"capacity": 80}, "tokens, 12 new ones and a tree of 63 nodes do not fit into 80 KV rows"),
    ],
)
def test_what_does_not_fit_the_recording(replay, overrides, message):
    with pytest.raises(ValueError, match=message):
        search_trees(dataclasses.replace(replay, **overrides))
    assert not replay.out.exists()


def test_what_does_not_fit_the_model(live, tmp_path):
    for overrides, message in (
        ({"depth": 5}, "depth=5 is beyond the 4 draft heads"),
        ({"capacity": 70}, "do not fit into 70 KV rows"),
        ({"num_prompts": 7}, "has only 6"),
    ):
        with pytest.raises(ValueError, match=message):
            search_trees(dataclasses.replace(live, **overrides))
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="has no prompts"):
        search_trees(dataclasses.replace(live, prompts=str(tmp_path / "none.jsonl")))


def test_a_recording_of_a_real_model_from_end_to_end(tiny_files, replay):
    record_tiny(tiny_files, 12).save(replay.recordings[0])
    trees = search_trees(dataclasses.replace(replay, method="optimal"))
    assert all(
        own.bias == pytest.approx(own.estimated_tau / own.run.tau - 1) for own in trees if own.estimate
    )
