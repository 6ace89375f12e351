import copy
import dataclasses
import hashlib
import json
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.replay.cost_table import CostTable
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank

CONTEXTS = np.array([10, 20, 60])
TREES = (AUTOREGRESSIVE, DraftTree.chain(2), DraftTree("wide", ((0,), (1,), (2,), (0, 0))))
SECONDS = np.array([[2.0, 3.0, 5.0], [4.0, 4.0, 4.0], [9.0, 6.0, 5.0]])
ARRAYS = ("contexts", "seconds", "lower", "upper", "draft_seconds", "verify_seconds", "prefill_seconds")


def make_table(**overrides):
    parts = {
        "name": "three",
        "trees": TREES,
        "contexts": CONTEXTS,
        "seconds": SECONDS,
        "lower": SECONDS * 0.9,
        "upper": SECONDS + 1 / 3,
        "draft_seconds": np.array([[0.0], [0.5], [0.25]]).repeat(3, 1),
        "verify_seconds": SECONDS / 2,
        "prefill_seconds": np.array([1.0, 2.0, 6.0]),
        "manifest": {"machine": {"processor": "abacus"}, "probe": "chain"},
    }
    return CostTable(**(parts | overrides))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "three.json"
    make_table().save(path)
    return path


def test_measured_points_come_back():
    table = make_table()
    costs = table.at(TopologyBank(TREES), CONTEXTS)
    for part in ("seconds", "draft_seconds", "verify_seconds", "prefill_seconds"):
        np.testing.assert_array_equal(getattr(costs, part), getattr(table, part))
        assert getattr(costs, part).dtype == np.float64


def test_between_below_and_beyond_the_measured_contexts():
    lengths = np.array([0, 9, 15, 30, 60, 100])
    costs = make_table().at(TopologyBank(TREES), lengths)
    np.testing.assert_allclose(
        costs.seconds,
        [
            [2.0, 2.0, 2.5, 3.5, 5.0, 7.0],  # goes on by 2 in 40
            [4.0] * 6,
            [9.0, 9.0, 7.5, 5.75, 5.0, 5.0],  # never falls below the last
        ],
    )
    np.testing.assert_allclose(costs.prefill_seconds, [1.0, 1.0, 1.5, 3.0, 6.0, 10.0])


@given(
    st.lists(st.integers(1, 500), min_size=2, max_size=6, unique=True),
    st.floats(0.01, 10),
    st.floats(0, 0.1),
    st.lists(st.integers(1, 900), min_size=1),
)
def test_costs_that_rise_on_a_line_stay_on_it(contexts, base, slope, lengths):
    contexts = np.array(sorted(contexts))
    line = base + slope * contexts
    table = make_table(
        trees=(AUTOREGRESSIVE,),
        contexts=contexts,
        **dict.fromkeys(("seconds", "lower", "upper", "draft_seconds", "verify_seconds"), line[None]),
        prefill_seconds=line,
    )
    costs = table.at(TopologyBank([]), np.array(lengths))
    expected = base + slope * np.maximum(lengths, contexts[0])
    np.testing.assert_allclose(costs.seconds, expected[None], rtol=1e-6)
    np.testing.assert_allclose(costs.prefill_seconds, expected, rtol=1e-6)


def test_one_context_serves_all():
    only = {key: getattr(make_table(), key)[..., :1] for key in ARRAYS}
    costs = make_table(**only).at(TopologyBank(TREES), np.array([1, 10, 1000]))
    np.testing.assert_array_equal(costs.seconds, SECONDS[:, [0, 0, 0]])


def test_trees_are_found_by_topology_in_the_order_of_the_bank():
    bank = TopologyBank([dataclasses.replace(TREES[2], name="other"), TREES[0]])
    costs = make_table().at(bank, np.array([20]))
    np.testing.assert_array_equal(costs.seconds, [[6.0], [3.0]])


def test_an_unmeasured_tree_is_refused():
    bank = TopologyBank([*TREES, DraftTree.chain(3), DraftTree.chain(1)])
    with pytest.raises(ValueError, match=r"'three' has no chain-3, chain-1 .*train costs --bank.*analytic:"):
        make_table().at(bank, CONTEXTS)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"name": 3}, "names"),
        ({"trees": (DraftTree(7), *TREES[1:])}, "names"),
        ({"trees": ()}, "at least one tree"),
        ({"manifest": []}, "manifest"),
        ({"contexts": np.array([10, 10, 60])}, "rising"),
        ({"contexts": np.array([0, 20, 60])}, "rising"),
        ({"contexts": np.array([1.0, 2.0, 3.0])}, "int64"),
        ({"contexts": CONTEXTS[:2]}, r"seconds has shape \(3, 3\), expected \(3, 2\)"),
        ({"prefill_seconds": np.ones(2)}, "prefill_seconds has shape"),
        ({"seconds": SECONDS * np.nan}, "seconds has values"),
        ({"upper": SECONDS * np.inf}, "upper has values"),
        ({"lower": SECONDS * 0}, "lower has values"),
        ({"draft_seconds": -SECONDS}, "draft_seconds has values"),
        ({"prefill_seconds": np.zeros(3)}, "prefill_seconds has values"),
        ({"lower": SECONDS * 1.1}, "between its quartiles"),
        ({"upper": SECONDS * 0.9}, "between its quartiles"),
    ],
)
def test_parts_that_do_not_fit_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        make_table(**overrides)


def test_a_file_brings_everything_back(saved):
    table, loaded = make_table(), CostTable.load(saved)
    for key in ARRAYS:
        np.testing.assert_array_equal(getattr(loaded, key), getattr(table, key))
        assert getattr(loaded, key).dtype == getattr(table, key).dtype
    assert (loaded.name, loaded.trees, loaded.manifest) == (table.name, table.trees, table.manifest)
    assert loaded.probe == "chain"
    assert loaded.fingerprint == table.fingerprint
    assert make_table(name="four").fingerprint != table.fingerprint
    for twin in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table)):
        assert twin.fingerprint == table.fingerprint


def test_one_changed_number_is_found(saved):
    text = saved.read_text()
    changed = text.replace("3.0", "3.0001", 1)
    assert changed != text
    saved.write_text(changed)
    with pytest.raises(ValueError, match="sha256"):
        CostTable.load(saved)


def test_another_format_is_named(saved):
    saved.write_text(saved.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(ValueError, match="format 9, this version reads 1"):
        CostTable.load(saved)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\xfa", b"[]", b"7", b"null", b"{}", b'{"format": 1}', b"[" * 100_000]
)
def test_a_foreign_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "foreign.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.json is damaged or is no cost table"):
        CostTable.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        CostTable.load(tmp_path / "absent.json")


def test_damaged_bytes_are_never_accepted(saved):
    rng, original = random.Random(0), saved.read_bytes()
    expected = json.loads(original)
    errors = []
    for _ in range(400):
        data = bytearray(original)
        match rng.randrange(3):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                start = rng.randrange(len(data))
                del data[start : start + rng.randrange(1, 40)]
        saved.write_bytes(data)
        try:
            CostTable.load(saved)
        except ValueError as error:
            errors.append(str(error))
        else:
            assert json.loads(bytes(data)) == expected, "only white space may differ"
    assert len(errors) > 350
    assert all("damaged or is no cost table" in error for error in errors)


JUNK = (None, True, -1, 0, 1.5, 10**400, "0.5", "", [], {}, [[]], [1, 2], {"a": 1}, "\ud800", 1e999)


def places(value, path=()):
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from places(child, (*path, key))


def put(document, path, junk):
    if not path:
        return junk
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    if junk is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = junk
    return document


def test_structures_with_a_true_seal_are_checked_too(saved):
    """Whoever seals nonsense with a right hash still gets no table and no exception of another kind."""
    document = json.loads(saved.read_text())
    del document["sha256"]
    rng = random.Random(1)
    accepted, errors = [], []
    for path in places(document):
        for junk in (*rng.sample(JUNK, 5), *([KeyError] if path else [])):
            changed = put(document, path, junk)
            if isinstance(changed, dict):
                canonical = json.dumps(changed, sort_keys=True, separators=(",", ":"))
                changed["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
            saved.write_text(json.dumps(changed))
            try:
                CostTable.load(saved)
            except ValueError as error:
                errors.append(str(error))
            else:
                accepted.append(path)
    assert len(errors) > 400
    assert all("damaged or is no cost table" in error for error in errors)
    # What was accepted is another valid table: names and the manifest are free, a tree may be missing.
    assert {path[0] for path in accepted} == {"name", "manifest", "trees", "prefill_seconds"}
    assert "seconds" not in {key for path in accepted if path[0] == "trees" for key in path[2:3]}
