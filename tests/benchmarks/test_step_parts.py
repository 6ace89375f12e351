import itertools

import numpy as np
import pytest

from benchmarks import step_parts
from benchmarks.interleaved import take_turns
from benchmarks.products import KINDS
from benchmarks.step_parts import PARTS, accepted_rows, dissect, step_findings, step_turns, switch_turn
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank
from tests.tiny import tiny_decoder

BANK = default_bank()
TREES = [AUTOREGRESSIVE, DraftTree.chain(2), BANK[-1]]


@pytest.mark.parametrize("tree", BANK.trees, ids=lambda tree: tree.name)
def test_accepted_rows_are_a_whole_path(tree):
    rows = accepted_rows(tree)
    assert rows[0] == 0
    assert len(rows) == tree.depth + 1
    assert all(tree.parents[child] == parent for parent, child in itertools.pairwise(rows))


def test_the_gather_of_a_wide_tree_moves_rows():
    assert accepted_rows(BANK[-1]) != list(range(BANK[-1].depth + 1))


@pytest.mark.parametrize("arch", ["medusa", "hydra", "hydra-prefix"])
def test_dissecting_steps_changes_no_text(arch):
    decoder = tiny_decoder(arch, eos=frozenset())
    texts = []
    for dissected in (False, True):
        decoder.start([3, 4, 5], max_new_tokens=20)
        while not decoder.finish_reason:
            if dissected:
                for tree in TREES:
                    assert (dissect(decoder, tree) > 0).all()
            decoder.step(TREES[-1])
        texts.append((decoder.tokens, decoder.length))
    assert texts[0] == texts[1]


def test_turns_name_all_parts(monkeypatch):
    monkeypatch.setattr(step_parts, "_COPY_BYTES", 1 << 16)
    samples = take_turns(step_turns(tiny_decoder(eos=frozenset()), TREES, 30, 1), 2, lambda: None)
    expected = {"autoregressive", "floor", *(f"product {kind}" for kind in KINDS)}
    assert set(samples) == expected | {f"{part} {tree.name}" for part in PARTS for tree in TREES}
    assert all(values.shape == (2,) and (values > 0).all() for values in samples.values())


def test_findings_are_ratios_within_a_round():
    # The machine is twice as slow in the second round and thrice in the third: ratios must not notice.
    drift = np.array([1.0, 2.0, 3.0])
    samples = {"autoregressive": 10 * drift, "floor": 5 * drift}
    samples |= {f"product {kind}": (k + 1) / 2 * drift for k, kind in enumerate(KINDS)}  # 7.5 in all
    for tree in TREES:
        samples |= {
            f"{part} {tree.name}": (k + 1) / 10 * (1 + len(tree)) * drift for k, part in enumerate(PARTS)
        }
    found = {own.name: own for own in step_findings(samples, TREES)}
    assert all(own.lower == pytest.approx(own.upper) for own in found.values() if own.unit == "×")
    assert found["autoregressive step ÷ its matrix products"].value == pytest.approx(10 / 7.5)
    assert found["autoregressive step ÷ reading what it must"].value == pytest.approx(2)
    shares = [own.value for name, own in found.items() if name.startswith("share of")]
    assert len(shares) == len(KINDS) + 1
    assert sum(shares) == pytest.approx(1)
    largest = "63 nodes (hydra-default)"
    assert found[f"verify {largest}"].value == pytest.approx(0.02 * 64)
    assert found[f"draft {largest}"].value == pytest.approx((0.01 + 0.04) * 64)
    assert found["commit: KV gather of 5 rows"].value == pytest.approx(0.03 * 64)


def test_a_switch_is_what_a_step_takes_longer_behind_another_tree(monkeypatch):
    last = [None]

    def ticking(decoder, tree):
        decoder.draft(tree), decoder._layout(tree)
        seconds = 1.0 + len(tree) + (10 if tree is not last[0] else 0)
        last[0] = tree
        return np.array([seconds])

    monkeypatch.setattr(step_parts, "dissect", ticking)
    found = switch_turn(tiny_decoder(eos=frozenset()), (TREES[1], TREES[2]), 30, 4)()
    assert found["switch"] == pytest.approx(10)
    assert 0 < found["look-up"] < 1
