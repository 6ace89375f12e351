import json
from pathlib import Path

import numpy as np
import pytest

from entmtp_env.replay.cost_table import CostTable
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, load_bank
from tests.recordings import COSTS, random_recording
from train.bank import Bank, choose_bank, pool

FORK = DraftTree("fork", ((0,), (1,), (0, 0), (1, 0)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two recordings and two banks of candidates."""
    folder = tmp_path_factory.mktemp("bank")
    rng = np.random.default_rng(3)
    for name, texts in (("a", 4), ("b", 3)):
        random_recording(rng, texts=texts, longest=40, cap=40, name=name).save(folder / f"{name}.npz")
    TopologyBank([DraftTree.chain(d) for d in (3, 1, 2)]).save(folder / "chains.json")
    wide = DraftTree("wide", ((0,), (1,), (2,), (3,)))
    TopologyBank([FORK, wide, DraftTree("chain-1", ((0,), (1,)))]).save(folder / "others.json")
    return folder


def settings(files, out, **changes):
    defaults = {
        "candidates": (str(files / "chains.json"), str(files / "others.json")),
        "recordings": (str(files / "a.npz"), str(files / "b.npz")),
        "costs": COSTS,
        "size": 3,
    }
    return Bank(out=out / "few.json", **(defaults | changes))


def oracle_seconds(bank, *recordings):
    tables = ReplayTables.build(load_recording([str(r) for r in recordings]), load_costs(COSTS), bank)
    return solve(tables).seconds.sum()


@pytest.mark.parametrize("swaps", [False, True])
def test_the_bank_in_the_file_is_worth_what_the_manifest_says(files, tmp_path, swaps, capsys):
    config = settings(files, tmp_path, swaps=swaps)
    bank = choose_bank(config)
    assert load_bank(str(config.out)).fingerprint == bank.fingerprint
    assert (bank.name, len(bank)) == ("few", 4)
    sizes = [len(tree) for tree in bank]
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    manifest = json.loads(config.manifest_path.read_text())
    recordings = files / "a.npz", files / "b.npz"
    tokens = sum(load_recording(str(recording)).lengths.sum() for recording in recordings)
    assert manifest["bank_fingerprint"] == bank.fingerprint
    assert manifest["texts"] == {str(files / "a.npz"): 4, str(files / "b.npz"): 3}
    rates = [row["oracle_tokens_per_second"] for row in manifest["chosen"]]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(tokens / oracle_seconds(bank, *recordings))
    assert manifest["oracle_of_all_tokens_per_second"] >= rates[-1]
    assert rates[-1] >= manifest["fastest_alone"][-1]["oracle_tokens_per_second"]
    assert {row["name"] for row in manifest["chosen"]} == set(bank.names)
    assert (manifest["gain_by_swaps"] > 0) <= swaps
    shown = capsys.readouterr().out
    assert all(name in shown for name in bank.names)
    assert f"{rates[-1]:.1f}" in shown
    assert ("exchanges" in shown) == swaps


def test_trees_to_keep_come_on_top_of_the_size(files, tmp_path):
    without = choose_bank(settings(files, tmp_path, size=1))
    missing = next(name for name in ("chain-2", "chain-3") if name not in without.names)
    config = settings(files, tmp_path, size=1, keep=(missing, without.names[1]), overwrite=True)
    assert set(choose_bank(config).names) == {*without.names, missing}
    with pytest.raises(ValueError, match="no tree 'oak'"):
        choose_bank(settings(files, tmp_path, keep=("oak",), overwrite=True))


def test_each_recording_has_a_row_of_its_own(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(files)
    bank = choose_bank(settings(files, tmp_path, recordings=("a.npz", "b.npz")))
    rows = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith((" a.npz", " b.npz"))
    ]
    everything = pool([load_bank(str(files / name)) for name in ("chains.json", "others.json")])
    for name, row in zip(("a.npz", "b.npz"), rows, strict=True):
        least, own = (oracle_seconds(trees, files / name) for trees in (everything, bank))
        assert row[1] == f"{load_recording(name).lengths.sum() / least:.1f}"
        assert row[2] == f"{100 * least / own:.2f}"


def test_fewer_trees_are_kept_when_no_other_helps(files, tmp_path):
    dear = "analytic:base=0.01,node=1"
    assert choose_bank(settings(files, tmp_path, costs=dear, size=5)).names == ("autoregressive",)


def test_when_texts_have_one_token_drafts_are_worth_nothing(files, tmp_path):
    recording = load_recording(str(files / "a.npz"))
    bank = choose_bank(settings(files, tmp_path, recordings=(str(files / "a.npz"),), max_new_tokens=1))
    manifest = json.loads((tmp_path / "few.json.manifest.json").read_text())
    contexts = [text.prompt_tokens for text in recording.texts]
    seconds = sum(0.02 + 0.0001 * context for context in contexts)
    assert bank.names == ("autoregressive",)
    assert manifest["chosen"][0]["oracle_tokens_per_second"] == pytest.approx(4 / seconds)


def test_pooling_keeps_each_topology_once_and_tells_names_apart():
    twin, other = DraftTree("twin", FORK.nodes), DraftTree("chain-1", ((0,), (1,)))
    pooled = pool([TopologyBank([FORK, DraftTree.chain(1)]), TopologyBank([twin, other])])
    assert [tree.nodes for tree in pooled] == [(), FORK.nodes, ((0,),), ((0,), (1,))]
    plain, *clash = pooled.names[1:]
    assert plain == "fork"
    assert clash == [f"chain-1-{tree.fingerprint[:6]}" for tree in (DraftTree.chain(1), other)]


def test_trees_deeper_than_the_recording_are_refused_shallower_ones_are_not(files, tmp_path):
    TopologyBank([DraftTree.chain(4)]).save(tmp_path / "deep.json")
    with pytest.raises(ValueError, match="depth 4, the recording only 3"):
        choose_bank(settings(files, tmp_path, candidates=(str(tmp_path / "deep.json"),)))
    TopologyBank([DraftTree.chain(1)]).save(tmp_path / "shallow.json")
    assert choose_bank(settings(files, tmp_path, candidates=(str(tmp_path / "shallow.json"),))).depth == 1


def test_a_bank_without_drafts_is_refused(files, tmp_path):
    TopologyBank([AUTOREGRESSIVE]).save(tmp_path / "empty.json")
    with pytest.raises(ValueError, match=r"no tree of .*empty\.json drafts"):
        choose_bank(settings(files, tmp_path, candidates=(str(tmp_path / "empty.json"),)))


def test_a_tree_without_a_price_is_named(files, tmp_path):
    trees, shape = (AUTOREGRESSIVE, FORK), (2, 1)
    ones = np.ones(shape)
    table = CostTable("measured", trees, np.array([8]), ones, ones, ones, ones / 4, ones / 2, np.ones(1), {})
    table.save(tmp_path / "costs.json")
    with pytest.raises(ValueError, match=r"'measured' has no .*chain-3.*analytic:"):
        choose_bank(settings(files, tmp_path, costs=str(tmp_path / "costs.json")))
    assert not (tmp_path / "few.json").exists()


def test_a_bank_that_is_there_is_kept(files, tmp_path):
    (tmp_path / "few.json").write_text("mine")
    with pytest.raises(FileExistsError, match="--overwrite"):
        choose_bank(settings(files, tmp_path))
    assert (tmp_path / "few.json").read_text() == "mine"
    choose_bank(settings(files, tmp_path, overwrite=True))
    assert load_bank(str(tmp_path / "few.json")).name == "few"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size must be at least 1"),
        ({"candidates": ()}, "at least one"),
        ({"recordings": ()}, "at least one"),
        ({"out": Path("bank.txt")}, r"must end in \.json"),
    ],
)
def test_settings_that_choose_nothing_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Bank(**({"out": Path("bank.json")} | change))
