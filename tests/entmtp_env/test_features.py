"""Features against a plain-Python reference that recomputes everything from one episode's whole history."""

import math
import pickle
from dataclasses import fields

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.features import GROUPS, FeatureSet, Signals, root_shape

SIZES = (0, 3, 7)


def draw_signals(rng, n, depth, num_trees=3):
    """Random signals for n environments; each drafted a random number of the depths, perhaps none."""
    drafted = rng.integers(0, depth + 1, size=n)
    hidden = np.arange(depth) >= drafted[:, None]
    return Signals(
        base_top1=rng.random(n),
        base_entropy=rng.random(n),
        head_top1=np.where(hidden, np.nan, rng.random((n, depth))),
        head_entropy=np.where(hidden, np.nan, rng.random((n, depth))),
        accept_length=rng.integers(0, depth + 3, size=n),  # also past D, which counts as D
        first_draft_right=np.where(drafted == 0, np.nan, rng.integers(0, 2, size=n)),
        generated_fraction=rng.random(n),
        context_fraction=rng.random(n),
        action=rng.integers(0, num_trees, size=n),
        root_shape=rng.random((n, 5)) < 0.5,
        tree_value=rng.random((n, num_trees)) * np.maximum(SIZES[:num_trees], 1),
    )


def only(signals, env):
    """The signals of one environment, as a batch of one."""
    return Signals(**{f.name: getattr(signals, f.name)[env : env + 1] for f in fields(Signals)})


def ema(values, window):
    average = values[0]
    for value in values[1:]:
        average = (1 - 2 / (window + 1)) * average + 2 / (window + 1) * value
    return average


def last_known(rows, default):
    return next((float(x) for x in reversed(rows) if not math.isnan(x)), default)


def reference(history, depth, num_trees):
    """Every feature by name; ``history[0]`` is the reset, each later entry a step. One environment."""
    now, steps = history[-1], history[1:]
    p0 = float(now.base_top1[0])
    out = {"base_top1": p0, "base_entropy": float(now.base_entropy[0])}
    entropies = [float(s.base_entropy[0]) for s in history]
    out |= {f"entropy_ema_{w}": ema(entropies, w) for w in (4, 8, 12, 16, 24, 32, 64)}

    values, survive, g = [p0], 0.0, p0
    for d in range(depth):
        g *= last_known([s.head_top1[0, d] for s in history], 1.0)
        values.append(g)
        survive += math.prod(last_known([s.head_top1[0, i] for s in history], 1.0) for i in range(d + 1))
        out[f"path_value_{d + 1}"] = g
        out[f"head_entropy_{d + 1}"] = last_known([s.head_entropy[0, d] for s in history], 0.0)
    out |= {"best_path_value": max(values), "deep_path_value": g}
    out["expected_accept"] = survive / depth if depth else 0.0

    accepts = [min(1.0, int(s.accept_length[0]) / max(depth, 1)) for s in steps]
    recent = accepts[-8:] or [0.0]
    out["accept_last"] = recent[-1]
    out |= {f"accept_ema_{w}": ema(accepts or [0.0], w) for w in (4, 16)}
    out |= {"accept_mean_8": sum(recent) / len(recent)}
    out |= {"accept_min_8": min(recent), "accept_max_8": max(recent)}
    agreed = [float(s.first_draft_right[0]) for s in steps if not math.isnan(s.first_draft_right[0])][-8:]
    out["head_agreement_8"] = sum(agreed) / len(agreed) if agreed else 0.0

    out["generated_fraction"] = float(now.generated_fraction[0])
    out["context_fraction"] = float(now.context_fraction[0])
    out["last_tree"] = int(steps[-1].action[0]) / (num_trees - 1) if steps and num_trees > 1 else 0.0
    shapes = ("digit", "space", "newline", "punctuation", "wordpiece")
    out |= {f"root_is_{shape}": float(now.root_shape[0, i]) for i, shape in enumerate(shapes)}
    return out | {f"tree_value_{k}": float(now.tree_value[0, k]) for k in range(num_trees)}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(0, 5),
    num_trees=st.integers(1, 3),
    ticks=st.integers(0, 20),
)
def test_masked_batches_match_the_reference_of_each_environment(seed, depth, num_trees, ticks):
    rng = np.random.default_rng(seed)
    n = 3
    features = FeatureSet(depth, SIZES[:num_trees], probe="union")
    tracker = features.tracker(n)
    first = draw_signals(rng, n, depth, num_trees)
    tracker.reset(first)
    histories = [[only(first, env)] for env in range(n)]
    for _ in range(ticks):
        signals = draw_signals(rng, n, depth, num_trees)
        kind = rng.choice(3, size=n, p=[0.8, 0.05, 0.15])  # step, reset, idle
        tracker.step(signals, kind == 0)
        tracker.reset(signals, kind == 1)
        for env in range(n):
            if kind[env] == 0:
                histories[env].append(only(signals, env))
            elif kind[env] == 1:
                histories[env] = [only(signals, env)]
    expected = [reference(history, depth, num_trees) for history in histories]
    observed = tracker.observe()
    for env in range(n):
        assert dict(zip(features.names, observed[env], strict=True)) == pytest.approx(expected[env], abs=1e-6)


@pytest.mark.parametrize("depth", [0, 4])
def test_a_batch_without_mask_equals_single_environments(depth):
    rng = np.random.default_rng(0)
    features = FeatureSet(depth, SIZES)
    batch, singles = features.tracker(5), [features.tracker(1) for _ in range(5)]
    for tick in range(12):
        signals = draw_signals(rng, 5, depth)
        (batch.step if tick else batch.reset)(signals)
        for env, single in enumerate(singles):
            (single.step if tick else single.reset)(only(signals, env))
        np.testing.assert_array_equal(batch.observe(), np.concatenate([s.observe() for s in singles]))


def test_a_policy_that_starts_small_sees_what_deep_trees_promise():
    features = FeatureSet(3, SIZES)
    tracker = features.tracker(1)
    signals = draw_signals(np.random.default_rng(1), 1, 3)
    signals.base_top1[:] = 0.8
    signals.head_top1[:] = np.nan
    tracker.reset(signals)
    at_start = dict(zip(features.names, tracker.observe()[0], strict=True))
    signals.head_top1[:] = [[0.5, 0.25, np.nan]]
    tracker.step(signals)
    signals.head_top1[:] = [[0.6, np.nan, np.nan]]
    signals.base_top1[:] = 0.4
    tracker.step(signals)
    later = dict(zip(features.names, tracker.observe()[0], strict=True))
    assert at_start["deep_path_value"] == pytest.approx(0.8)
    assert at_start["expected_accept"] == 1.0
    assert later["deep_path_value"] == pytest.approx(0.4 * 0.6 * 0.25)
    assert later["expected_accept"] == pytest.approx((0.6 + 0.15 + 0.15) / 3)


def test_names_follow_the_table():
    assert FeatureSet(2, SIZES, probe="union").names == (
        *("base_top1", "base_entropy"),
        *("entropy_ema_4", "entropy_ema_8", "entropy_ema_12", "entropy_ema_16"),
        *("entropy_ema_24", "entropy_ema_32", "entropy_ema_64"),
        *("path_value_1", "path_value_2", "head_entropy_1", "head_entropy_2"),
        *("best_path_value", "deep_path_value", "expected_accept"),
        *("accept_last", "accept_ema_4", "accept_ema_16", "accept_mean_8", "accept_min_8", "accept_max_8"),
        *("head_agreement_8", "generated_fraction", "context_fraction", "last_tree"),
        *("root_is_digit", "root_is_space", "root_is_newline", "root_is_punctuation", "root_is_wordpiece"),
        *("tree_value_0", "tree_value_1", "tree_value_2"),
    )


def test_bounds_are_one_but_for_tree_values():
    features = FeatureSet(2, SIZES, probe="union")
    assert features.low.dtype == features.high.dtype == np.float32
    assert not features.low.any()
    assert features.high[-3:].tolist() == [1, 3, 7]  # the empty tree's bound must differ from its low
    assert (features.high[:-3] == 1).all()


@pytest.mark.parametrize("garbage", [-3.0, 50.0, np.nan, np.inf, -np.inf])
def test_observations_stay_finite_and_inside_the_box_whatever_comes(garbage):
    features = FeatureSet(2, SIZES, probe="union")
    tracker = features.tracker(4)
    signals = draw_signals(np.random.default_rng(2), 4, 2)
    tracker.reset(signals)
    for name in (
        "base_top1",
        "base_entropy",
        "head_top1",
        "head_entropy",
        "generated_fraction",
        "tree_value",
    ):
        getattr(signals, name)[:] = garbage
    signals.accept_length[:] = 9
    with np.errstate(invalid="ignore"):
        tracker.step(signals)
    observed = tracker.observe()
    assert observed.dtype == np.float32
    assert np.isfinite(observed).all()
    box = Box(features.low, features.high)
    assert all(box.contains(row) for row in observed)
    assert observed[0, features.names.index("accept_last")] == 1.0


def test_observations_alias_neither_each_other_nor_the_signals():
    rng = np.random.default_rng(3)
    features = FeatureSet(2, SIZES, probe="union")
    tracker = features.tracker(2)
    signals = draw_signals(rng, 2, 2)
    tracker.reset(signals)
    kept = tracker.observe()
    before = kept.copy()
    for field in fields(Signals):
        getattr(signals, field.name)[:] = 1
    np.testing.assert_array_equal(tracker.observe(), before)
    tracker.step(draw_signals(rng, 2, 2))
    assert (tracker.observe() != before).any()
    np.testing.assert_array_equal(kept, before)
    kept[:] = -1
    assert (tracker.observe() >= 0).all()


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_is_its_columns_of_the_whole(group):
    rng = np.random.default_rng(4)
    everything, alone = (FeatureSet(3, SIZES, groups, probe="union") for groups in ("all", [group]))
    trackers = [everything.tracker(2), alone.tracker(2)]
    for tick in range(11):
        signals = draw_signals(rng, 2, 3)
        for tracker in trackers:
            (tracker.step if tick else tracker.reset)(signals)
    columns = [everything.names.index(name) for name in alone.names]
    assert {everything.features[c].group for c in columns} == {group}
    np.testing.assert_array_equal(trackers[1].observe(), trackers[0].observe()[:, columns])


def test_the_groups_partition_the_vector_in_one_order():
    whole = FeatureSet(3, SIZES, probe="union")
    parts = [FeatureSet(3, SIZES, group, probe="union").names for group in GROUPS]
    assert whole.names == sum(parts, ())
    assert FeatureSet(3, SIZES, "heads,base").names == FeatureSet(3, SIZES, ["base", "heads"]).names


def test_tree_values_exist_with_the_union_probe_only():
    assert FeatureSet(2, SIZES).groups == FeatureSet(2, SIZES, probe="chain").groups == GROUPS[:-1]
    with pytest.raises(ValueError, match="'trees' needs probe='union'"):
        FeatureSet(2, SIZES, ["base", "trees"], probe="chain")
    signals = draw_signals(np.random.default_rng(5), 1, 2)
    signals.tree_value = None
    FeatureSet(2, SIZES).tracker(1).reset(signals)
    with pytest.raises(ValueError, match=r"Signals\.tree_value"):
        FeatureSet(2, SIZES, probe="union").tracker(1).reset(signals)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": ["base", "heds"]}, "'heds'.*base, entropy, heads, acceptance, position, token"),
        ({"groups": []}, "one or more of base"),
        ({"probe": "full"}, "'full'.*none, chain, union"),
        ({"depth": -1}, "depth >= 0"),
        ({"tree_sizes": ()}, "one size per tree"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        FeatureSet(**{"depth": 2, "tree_sizes": SIZES} | arguments)


def test_fingerprint_tells_names_depth_and_probe_apart():
    sets = [
        FeatureSet(2, SIZES),
        FeatureSet(3, SIZES),
        FeatureSet(2, SIZES, ["base"]),
        FeatureSet(3, SIZES, ["base"]),
        FeatureSet(2, SIZES, probe="chain"),
        FeatureSet(2, SIZES, probe="union"),
    ]
    assert len({features.fingerprint for features in sets}) == len(sets)
    assert pickle.loads(pickle.dumps(sets[0])).fingerprint == FeatureSet(2, SIZES).fingerprint


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("", ""),
        (" ", "space"),
        (" the", "space"),
        ("ing", "wordpiece"),
        ("été", "wordpiece"),
        ("7", "digit"),
        (" x2", "digit space"),
        ("v2", "digit wordpiece"),
        ("\n\n", "newline"),
        ("a\n", "newline wordpiece"),
        (");\n", "newline punctuation"),
        (" +=", "space punctuation"),
        ("...", "punctuation"),
        (",x", ""),
        ("_", "punctuation"),
        ("€", "punctuation"),
        ("\t", ""),
    ],
)
def test_root_shape(text, shapes):
    names = np.array(["digit", "space", "newline", "punctuation", "wordpiece"])
    assert names[np.array(root_shape(text))].tolist() == shapes.split()
