import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.spec import Spec, parse_spec
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank, default_bank, load_bank
from policies.options import names
from tests.tiny import random_tree

WIDE = DraftTree("wide", ((0,), (1,), (1, 0)))


@pytest.fixture
def bank():
    return TopologyBank([DraftTree.chain(2), WIDE], name="small")


def test_the_empty_tree_is_always_there(bank):
    assert bank.names == ("autoregressive", "chain-2", "wide")
    assert len(TopologyBank([])) == 1
    assert TopologyBank([WIDE, AUTOREGRESSIVE]).names == ("wide", "autoregressive")


def test_it_is_a_sequence(bank):
    assert len(bank) == 3
    assert list(bank) == [bank[0], bank[1], bank[2]] == [AUTOREGRESSIVE, DraftTree.chain(2), WIDE]


def test_sizes(bank):
    assert (bank.depth, bank.max_nodes) == (2, 3)
    assert (TopologyBank([]).depth, TopologyBank([]).max_nodes) == (0, 0)


def test_index(bank):
    assert [bank.index(name) for name in bank.names] == [0, 1, 2]
    with pytest.raises(ValueError, match="'small' has no tree 'tall'; it has autoregressive, chain-2, wide"):
        bank.index("tall")


def test_names_must_be_unique():
    with pytest.raises(ValueError, match="must be unique, twin is not"):
        TopologyBank([DraftTree("twin", ((0,),)), DraftTree("twin")])


@pytest.mark.parametrize(
    "name", ["", " ", "16", "1e3", "-.5", "True", "false", "a|b", "a,b", "a:b", "a=b", "a@b", " a", "a\n"]
)
def test_names_that_a_spec_would_not_be_read_as_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"bank 'own': .* cannot be written; a name is no bare") as error:
        TopologyBank([DraftTree("wide", ((0,), (1,))), DraftTree(name, ((0,),))], "own")
    assert f"specs, where {name!r} cannot" in str(error.value)
    path = tmp_path / "bank.json"
    path.write_text(json.dumps({"format": 1, "name": "own", "trees": [{"name": name, "nodes": [[0]]}]}))
    with pytest.raises(ValueError, match=r"bank\.json is not a topology bank: .*cannot be written"):
        TopologyBank.load(path)


@given(st.text(st.characters(codec="ascii"), max_size=4))
def test_names_that_are_not_refused_are_read_back(name):
    try:
        TopologyBank([DraftTree(name, ((0,),))])
    except ValueError:
        return
    assert parse_spec(f"static:{name},tree={name}") == Spec("static", name, {"tree": name})
    assert names("trees", f"{name}|{name}") == (name, name)


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 20), max_size=5))
def test_union_has_the_nodes_of_all(random, sizes):
    trees = [DraftTree(f"tree-{i}", random_tree(random, size).nodes) for i, size in enumerate(sizes)]
    union = TopologyBank(trees).union
    assert set(union.nodes) == {node for tree in trees for node in tree.nodes}


def test_the_fingerprint_depends_on_names_topologies_and_order(bank):
    same = TopologyBank([DraftTree.chain(2), WIDE], name="another name")
    others = [
        TopologyBank([WIDE, DraftTree.chain(2)]),
        TopologyBank([DraftTree.chain(2, "renamed"), WIDE]),
        TopologyBank([DraftTree.chain(3, "chain-2"), WIDE]),
        TopologyBank([WIDE]),
    ]
    assert same.fingerprint == bank.fingerprint
    assert len({bank.fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize("make", [default_bank, lambda: TopologyBank([WIDE, AUTOREGRESSIVE], name="ändert")])
def test_round_trip(make, tmp_path):
    bank, path = make(), tmp_path / "new" / "bank.json"
    bank.save(path)
    loaded = TopologyBank.load(path)
    assert (loaded.name, loaded.trees, loaded.fingerprint) == (bank.name, bank.trees, bank.fingerprint)
    assert load_bank(str(path)).trees == bank.trees


def test_banks_by_name():
    assert load_bank("default").trees == default_bank().trees
    with pytest.raises(FileNotFoundError, match="no topology bank 'defualt': expected one of default"):
        load_bank("defualt")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d | {"format": 2},
        lambda d: d | {"trees": 3},
        lambda d: d | {"name": 3},
        lambda d: d | {"trees": [{"name": ["x"], "nodes": []}]},
        lambda d: d | {"trees": [{"name": "x"}]},
        lambda d: d | {"trees": [{"name": "x", "nodes": [[0], [2]]}]},
        lambda d: d | {"trees": [{"name": "x", "nodes": [[0.5]]}]},
        lambda d: d | {"trees": [{"name": "x", "nodes": ["0"]}]},
        lambda d: d | {"trees": [{"name": "x", "nodes": [[1e999]]}]},
        lambda d: {key: value for key, value in d.items() if key != "trees"},
        lambda d: [d],
    ],
)
def test_files_that_are_no_bank_are_refused(bank, change, tmp_path):
    path = tmp_path / "bank.json"
    bank.save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=r"bank\.json is not a topology bank"):
        TopologyBank.load(path)


def test_damaged_files_are_refused_or_still_a_bank(bank, tmp_path):
    """A flipped bit in a name or rank may leave another legal bank, with another fingerprint."""
    path, random, refused = tmp_path / "bank.json", Random(0), 0
    bank.save(path)
    content = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(random.randint(1, 3)):
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = TopologyBank.load(path)
        except ValueError as error:
            assert "not a topology bank" in str(error)  # noqa: PT017 - either outcome is fine
            refused += 1
        else:
            same = (loaded.names, [t.nodes for t in loaded]) == (bank.names, [t.nodes for t in bank])
            assert same == (loaded.fingerprint == bank.fingerprint)
    assert refused > 200


def test_truncated_files_are_refused(bank, tmp_path):
    path = tmp_path / "bank.json"
    bank.save(path)
    content = path.read_bytes().rstrip()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="not a topology bank"):
            TopologyBank.load(path)


def test_a_missing_file_is_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        TopologyBank.load(tmp_path / "none.json")
