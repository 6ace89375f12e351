"""Features against a plain-Python reference that recomputes everything from one episode's whole history."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.features import GROUPS, FeatureSet
from entmtp_env.tracker import FeatureTracker, Signals

SIZES = (0, 3, 7)


def draw_signals(rng, n, depth, num_trees=3):
    """Random signals for n environments; each drafted a random number of the depths, perhaps none."""
    drafted = rng.integers(0, depth + 1, size=n)
    hidden = np.arange(depth)[:, None] >= drafted
    return Signals(
        base_top1=rng.random(n),
        base_entropy=rng.random(n),
        head_top1=list(np.where(hidden, np.nan, rng.random((depth, n)))),
        head_entropy=list(np.where(hidden, np.nan, rng.random((depth, n)))),
        accept_length=rng.integers(0, depth + 3, size=n),  # also past D, which counts as D
        first_draft_right=np.where(drafted == 0, np.nan, rng.integers(0, 2, size=n)),
        generated_fraction=rng.random(n),
        context_fraction=rng.random(n),
        action=rng.integers(0, num_trees, size=n),
        root_shape=list(rng.random((5, n)) < 0.5),
        tree_value=list(rng.random((num_trees, n)) * np.maximum(SIZES[:num_trees], 1)[:, None]),
    )


def pick(signals, index):
    """The signals of one environment (an integer), as plain floats, or of some (an array)."""

    def one(value):
        if isinstance(value, list):
            return [one(part) for part in value]
        return value[index] if isinstance(index, np.ndarray) else value[index].item()

    return Signals(**{f.name: one(getattr(signals, f.name)) for f in fields(Signals)})


def drafted(signals):
    """The signals of one environment without the depths that were not drafted."""
    known = {name: [x for x in getattr(signals, name) if x == x] for name in ("head_top1", "head_entropy")}
    return replace(signals, **known)


def ema(values, window):
    average = values[0]
    for value in values[1:]:
        average = (1 - 2 / (window + 1)) * average + 2 / (window + 1) * value
    return average


def last_known(rows, default):
    return next((x for x in reversed(rows) if not math.isnan(x)), default)


def reference(history, depth, num_trees):
    """Every feature by name; ``history[0]`` is the reset, each later entry a step. One environment."""
    now, steps = history[-1], history[1:]
    p0 = now.base_top1
    out = {"base_top1": p0, "base_entropy": now.base_entropy}
    entropies = [s.base_entropy for s in history]
    out |= {f"entropy_ema_{w}": ema(entropies, w) for w in (4, 8, 12, 16, 24, 32, 64)}

    values, survive, g = [p0], 0.0, p0
    for d in range(depth):
        g *= last_known([s.head_top1[d] for s in history], 1.0)
        values.append(g)
        survive += math.prod(last_known([s.head_top1[i] for s in history], 1.0) for i in range(d + 1))
        out[f"path_value_{d + 1}"] = g
        out[f"head_entropy_{d + 1}"] = last_known([s.head_entropy[d] for s in history], 0.0)
    out |= {"best_path_value": max(values), "deep_path_value": g}
    out["expected_accept"] = survive / depth if depth else 0.0

    accepts = [min(1.0, s.accept_length / max(depth, 1)) for s in steps]
    recent = accepts[-8:] or [0.0]
    out["accept_last"] = recent[-1]
    out |= {f"accept_ema_{w}": ema(accepts or [0.0], w) for w in (4, 16)}
    out |= {"accept_mean_8": sum(recent) / len(recent)}
    out |= {"accept_min_8": min(recent), "accept_max_8": max(recent)}
    agreed = [s.first_draft_right for s in steps if not math.isnan(s.first_draft_right)][-8:]
    out["head_agreement_8"] = sum(agreed) / len(agreed) if agreed else 0.0

    out["generated_fraction"] = now.generated_fraction
    out["context_fraction"] = now.context_fraction
    out["last_tree"] = steps[-1].action / (num_trees - 1) if steps and num_trees > 1 else 0.0
    shapes = ("digit", "space", "newline", "punctuation", "wordpiece")
    out |= {f"root_is_{shape}": float(now.root_shape[i]) for i, shape in enumerate(shapes)}
    return out | {f"tree_value_{k}": now.tree_value[k] for k in range(num_trees)}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(0, 5),
    num_trees=st.integers(1, 3),
    ticks=st.integers(0, 20),
)
def test_lock_step_and_single_environments_match_the_reference(seed, depth, num_trees, ticks):
    rng = np.random.default_rng(seed)
    n = 3
    features = FeatureSet(depth, SIZES[:num_trees], probe="union")
    batch, singles = FeatureTracker(features, n), [FeatureTracker(features) for _ in range(n)]
    histories = [[] for _ in range(n)]
    for tick in range(ticks + 1):
        signals = draw_signals(rng, n, depth, num_trees)
        restarted = np.flatnonzero(rng.random(n) < 0.1)
        if tick:
            batch.step(signals)
            batch.restart(restarted, pick(signals, restarted))
        else:
            batch.reset(signals)
        for env, (single, history) in enumerate(zip(singles, histories, strict=True)):
            begins = tick == 0 or env in restarted
            (single.reset if begins else single.step)(drafted(pick(signals, env)))
            if begins:
                history.clear()
            history.append(pick(signals, env))
    observed = batch.observe()
    assert observed.shape == (n, len(features.names))
    for env in range(n):
        expected = reference(histories[env], depth, num_trees)
        alone = singles[env].observe()
        assert dict(zip(features.names, observed[env], strict=True)) == pytest.approx(expected, abs=1e-6)
        assert dict(zip(features.names, alone, strict=True)) == pytest.approx(expected, abs=1e-6)


def test_single_precision_signals_stay_single_and_agree():
    rng = np.random.default_rng(0)
    features = FeatureSet(4, SIZES, probe="union")
    double, single = FeatureTracker(features, 5), FeatureTracker(features, 5)

    def narrow(value):
        return [narrow(part) for part in value] if isinstance(value, list) else value.astype(np.float32)

    for tick in range(40):
        signals = draw_signals(rng, 5, 4)
        narrowed = Signals(**{f.name: narrow(getattr(signals, f.name)) for f in fields(Signals)})
        (double.step if tick else double.reset)(signals)
        (single.step if tick else single.reset)(narrowed)
    np.testing.assert_allclose(single.observe(), double.observe(), atol=1e-6)
    values = [value for group in single._groups for value in group.now]
    assert {np.asarray(value).dtype for value in values} == {np.dtype(np.float32)}


def test_a_policy_that_starts_small_sees_what_deep_trees_promise():
    features = FeatureSet(3, SIZES)
    tracker = FeatureTracker(features)
    signals = pick(draw_signals(np.random.default_rng(1), 1, 3), 0)
    signals.base_top1 = 0.8
    signals.head_top1 = []
    tracker.reset(signals)
    at_start = dict(zip(features.names, tracker.observe(), strict=True))
    signals.head_top1 = [0.5, 0.25]
    tracker.step(signals)
    signals.head_top1 = [0.6]
    signals.base_top1 = 0.4
    tracker.step(signals)
    later = dict(zip(features.names, tracker.observe(), strict=True))
    assert at_start["deep_path_value"] == pytest.approx(0.8)
    assert at_start["expected_accept"] == 1.0
    assert later["deep_path_value"] == pytest.approx(0.4 * 0.6 * 0.25)
    assert later["expected_accept"] == pytest.approx((0.6 + 0.15 + 0.15) / 3)


@pytest.mark.parametrize("garbage", [-3.0, 50.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [None, 4])
def test_observations_stay_finite_and_inside_the_box_whatever_comes(garbage, n):
    features = FeatureSet(2, SIZES, probe="union")
    tracker = FeatureTracker(features, n)
    signals = draw_signals(np.random.default_rng(2), 4, 2)
    for name in ("base_top1", "base_entropy", "generated_fraction"):
        getattr(signals, name)[:] = garbage
    for name in ("head_top1", "head_entropy", "tree_value"):
        for value in getattr(signals, name):
            value[:] = garbage
    signals.accept_length[:] = 9
    if n is None:
        signals = drafted(pick(signals, 0))
    with np.errstate(invalid="ignore"):
        tracker.reset(signals)
        tracker.step(signals)
        observed = np.atleast_2d(tracker.observe())
    assert observed.dtype == np.float32
    assert np.isfinite(observed).all()
    box = Box(features.low, features.high)
    assert all(box.contains(row) for row in observed)
    assert observed[0, features.names.index("accept_last")] == 1.0


@pytest.mark.parametrize("n", [None, 2])
def test_observations_are_fresh_arrays(n):
    rng = np.random.default_rng(3)
    tracker = FeatureTracker(FeatureSet(2, SIZES, probe="union"), n)
    drawn = [draw_signals(rng, 2, 2) for _ in range(2)]
    first, second = drawn if n else [drafted(pick(signals, 0)) for signals in drawn]
    tracker.reset(first)
    kept = tracker.observe()
    before = kept.copy()
    tracker.step(second)
    assert (tracker.observe() != before).any()
    np.testing.assert_array_equal(kept, before)
    kept[:] = -1
    assert (tracker.observe() >= 0).all()


def test_restarting_some_environments_does_not_write_into_their_signals():
    rng = np.random.default_rng(6)
    tracker = FeatureTracker(FeatureSet(2, SIZES, probe="union"), 3)
    signals = draw_signals(rng, 3, 2)
    before = pick(signals, np.arange(3))
    tracker.reset(signals)
    tracker.restart(np.array([1]), pick(draw_signals(rng, 3, 2), np.array([1])))
    for field in fields(Signals):
        np.testing.assert_array_equal(getattr(signals, field.name), getattr(before, field.name))


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_is_its_columns_of_the_whole(group):
    rng = np.random.default_rng(4)
    everything, alone = (FeatureSet(3, SIZES, groups, probe="union") for groups in ("all", [group]))
    trackers = [FeatureTracker(features, 2) for features in (everything, alone)]
    for tick in range(11):
        signals = draw_signals(rng, 2, 3)
        for tracker in trackers:
            (tracker.step if tick else tracker.reset)(signals)
    columns = [everything.names.index(name) for name in alone.names]
    assert {everything.features[c].group for c in columns} == {group}
    np.testing.assert_array_equal(trackers[1].observe(), trackers[0].observe()[:, columns])


def test_tree_values_are_needed_with_the_union_probe_only():
    signals = pick(draw_signals(np.random.default_rng(5), 1, 2), 0)
    signals.tree_value = None
    FeatureTracker(FeatureSet(2, SIZES)).reset(signals)
    with pytest.raises(ValueError, match=r"Signals\.tree_value"):
        FeatureTracker(FeatureSet(2, SIZES, probe="union")).reset(signals)
