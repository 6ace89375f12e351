import math
from dataclasses import fields, replace

import numpy as np
import pytest

from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.signals import SignalTable
from entmtp_env.replay.tables import ReplayTables
from entmtp_env.tracker import Signals
from entmtp_env.trees import DraftTree
from tests.recordings import BANK, COSTS, random_recording

PROBES = ("none", "first", "chain", "union")
NAN = math.nan


@pytest.fixture(scope="module")
def tables():
    recording = random_recording(np.random.default_rng(0), texts=4, depth=4, candidates=BANK.union)
    return ReplayTables.build(recording, load_costs(COSTS), BANK, max_new_tokens=9, capacity=64)


def chain_depth(tree):
    """Depth to which a tree drafts the greedy chain."""
    return max(d for d in range(tree.depth + 1) if d == 0 or (0,) * d in tree.nodes)


def expected(tables, probe, row, step=None, ended=False):
    """What the decoder knows at a row, ``step`` being the row, tree and accepted drafts of the last step."""
    recording, last = tables.recording, row if step is None else step[0]
    fresh = step is None or (probe != "none" and not ended)
    if fresh:
        known = {"none": 0, "first": 1, "chain": BANK.depth, "union": chain_depth(BANK.union)}[probe]
        last = row
    else:
        known = chain_depth(BANK[step[1]])

    def drafted(values):
        return [values[last, d] if d < known else NAN for d in range(BANK.depth)]

    right = NAN
    if step is not None and len(BANK[step[1]]):
        right = float(recording.ranks[step[0], 0] == 0)
    values = dict(zip(recording.candidates.nodes, recording.path_values[row].tolist(), strict=True))
    return Signals(
        base_top1=recording.base_top1[row],
        base_entropy=recording.base_entropy[row],
        head_top1=drafted(recording.head_top1),
        head_entropy=drafted(recording.head_entropy),
        accept_length=0 if step is None else step[2],
        first_draft_right=right,
        generated_fraction=tables.positions[row] / 9,
        context_fraction=tables.contexts[row] / 64,
        action=0 if step is None else step[1],
        root_shape=recording.root_shape[row].astype(float).tolist(),
        tree_value=[0.0 if ended else math.fsum(values[node] for node in tree.nodes) for tree in BANK]
        if probe == "union"
        else None,
    )


def same(seen, wanted, *, ignore=()):
    for field in fields(Signals):
        mine, other = getattr(seen, field.name), getattr(wanted, field.name)
        if other is None or field.name in ignore:
            assert mine is None or field.name in ignore
        else:
            np.testing.assert_allclose(mine, other, rtol=1e-6, err_msg=field.name)


def padded(signals):
    """Floats with NaN for the depths that were not drafted."""
    heads = {name: getattr(signals, name) for name in ("head_top1", "head_entropy")}
    return replace(
        signals, **{name: known + [NAN] * (BANK.depth - len(known)) for name, known in heads.items()}
    )


ABOUT_THE_LAST_STEP = ("accept_length", "first_draft_right", "action")


@pytest.mark.parametrize("probe", PROBES)
def test_first_decisions(tables, probe):
    signals, rows = SignalTable(tables, probe), tables.starts
    many = signals.first_of_many(rows)
    for i, row in enumerate(rows.tolist()):
        wanted = expected(tables, probe, row)
        same(padded(signals.first(signals.at(row))), wanted, ignore=ABOUT_THE_LAST_STEP)
        same(one_of(many, i), wanted, ignore=ABOUT_THE_LAST_STEP)


@pytest.mark.parametrize("probe", PROBES)
def test_decisions_behind_every_possible_step(tables, probe):
    signals, steps = SignalTable(tables, probe), []
    for text, start in enumerate(tables.starts.tolist()):
        for before in range(start, int(tables.ends[text])):
            for action in range(len(BANK)):
                row = before + int(tables.emitted[action, before])
                steps.append((before, action, row - before - 1, row, bool(tables.stops[row])))
    columns = (np.array(column) for column in zip(*steps, strict=True))
    many = signals.after_many(*columns)
    for i, (before, action, accept, row, ended) in enumerate(steps):
        wanted = expected(tables, probe, row, (before, action, accept), ended)
        alone = signals.after(signals.at(before), action, accept, signals.at(row), ended)
        same(padded(alone), wanted)
        same(one_of(many, i), wanted)
    assert {ended for *_, ended in steps} == {True, False}


def one_of(signals, index):
    def pick(value):
        return (
            value if value is None else [v[index] for v in value] if isinstance(value, list) else value[index]
        )

    return Signals(**{field.name: pick(getattr(signals, field.name)) for field in fields(Signals)})


def test_many_are_in_single_precision(tables):
    signals = SignalTable(tables, "union").first_of_many(tables.starts)
    dtypes = {np.asarray(value).dtype for field in fields(Signals) for value in getattr(signals, field.name)}
    assert dtypes == {np.dtype(np.float32)}


def test_the_union_probe_needs_the_path_values_of_the_bank():
    recording = random_recording(np.random.default_rng(0), candidates=DraftTree.chain(3))
    tables = ReplayTables.build(recording, load_costs(COSTS), BANK)
    missing = len(set(BANK.union.nodes) - set(DraftTree.chain(3).nodes))
    with pytest.raises(ValueError, match=rf"path values of {missing} nodes.*--candidates"):
        SignalTable(tables, "union")
    signals = SignalTable(tables, "chain")
    assert signals.first(signals.at(0)).tree_value is None
