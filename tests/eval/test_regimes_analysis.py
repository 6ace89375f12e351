import dataclasses

import numpy as np
import pytest
from scipy.stats import pearsonr

from entmtp_env.features import feature_table
from eval.regimes_analysis import CLASSIFIED, FAMILIES, analyse, family_of, leading
from eval.regimes_log import StepLog
from eval.regimes_statistics import estimate

FEATURES = feature_table(4, (0, 3))
NAMES = [feature.name for feature in FEATURES]


def planted(name=None, texts=30, steps=25, seed=0):
    """Steps whose accept length is told by one feature, half of it; the others are noise."""
    rng = np.random.default_rng(seed)
    values = rng.random((texts * steps, len(FEATURES))).astype(np.float32)
    noise = rng.random(texts * steps)
    signal = values[:, NAMES.index(name)] if name else noise
    return StepLog(
        FEATURES,
        values,
        np.floor(2 * (signal + noise)).astype(np.int64),
        np.arange(texts).repeat(steps),
        tuple(f"p{i}" for i in range(texts)),
        tuple(f"text {i}" for i in range(texts)),
    )


def test_every_feature_has_a_family():
    families = {feature.name: family_of(feature) for feature in FEATURES}
    assert set(families.values()) == set(FAMILIES)
    for family, names in {
        "history": {"accept_last", "accept_ema_16", "accept_min_8", "head_agreement_8"},
        "entropy": {"base_entropy", "entropy_ema_4", "entropy_ema_64"},
        "heads": {"base_top1", "path_value_4", "head_entropy_1", "expected_accept", "tree_value_1"},
        "token": {"root_is_digit"},
        "position": {"generated_fraction", "last_tree"},
    }.items():
        assert {families[name] for name in names} == {family}


@pytest.mark.parametrize(
    ("name", "family"),
    [("accept_ema_16", "history"), ("entropy_ema_8", "entropy"), ("path_value_2", "heads")],
)
def test_a_planted_signal_is_found_where_it_is(name, family):
    log = planted(name)
    found = analyse(log, folds=3, samples=100)
    assert found.strongest() == name
    assert found.correlations[name].value == pytest.approx(
        pearsonr(log.values[:, NAMES.index(name)], log.accepted)[0], abs=1e-6
    )
    for other in CLASSIFIED[:-1]:
        r = found.aurocs[other]
        if other == family:
            assert r.low > 0.7
        else:
            assert r.value == pytest.approx(0.5, abs=0.08)
    assert found.aurocs["all"].low > 0.5
    if family != "heads":
        assert getattr(found.lead, family) == name
        assert (found.lead.difference.low > 0) == (family == "history")
        assert (found.lead.difference.high < 0) == (family == "entropy")


def test_noise_tells_nothing():
    found = analyse(planted(), folds=3, samples=100)
    assert found.aurocs["all"].value == pytest.approx(0.5, abs=0.08)
    assert max(abs(r.value) for r in found.correlations.values()) < 0.15
    assert found.lead.difference.low < 0 < found.lead.difference.high


def test_the_lead_is_of_each_resamples_own_strongest():
    """With the sample's own fixed, the choice would count as known and the interval be too narrow."""
    families = {"first": "history", "second": "history", "only": "entropy"}
    strengths = np.array([[0.5, 0.4, 0.3], [0.1, 0.6, 0.2], [0.2, 0.1, 0.5]])
    lead = leading(families, strengths)
    assert (lead.history, lead.entropy) == ("first", "only")
    expected = estimate(np.array([0.5 - 0.3, 0.6 - 0.2, 0.2 - 0.5]))
    assert lead.difference == expected


def test_texts_without_a_step_are_in_no_fold():
    log = planted("accept_ema_16")
    empty = dataclasses.replace(
        log, prompt_ids=(*log.prompt_ids, "p30", "p31"), texts=(*log.texts, "empty", "empty, too")
    )
    whole, found = (analyse(own, folds=3, samples=20) for own in (log, empty))
    assert found.generations == 32
    assert [r and r.value for r in found.aurocs.values()] == [r and r.value for r in whole.aurocs.values()]


def test_what_it_says_of_the_steps():
    log = planted("accept_last")
    told = []
    found = analyse(log, folds=3, samples=10, approximate=True, advance=lambda: told.append(1))
    assert (found.generations, found.steps) == (30, 750)
    assert found.tokens_per_step == pytest.approx(np.mean([n + 1 for n in log.accepted]))
    assert found.none_accepted == pytest.approx(sum(n == 0 for n in log.accepted) / 750)
    assert found.approximate
    assert len(told) == 3 * len(CLASSIFIED)


def test_the_difference_of_a_lead_is_of_absolute_values():
    log = planted("base_entropy")
    log.values[:, NAMES.index("base_entropy")] *= -1
    found = analyse(log, folds=3, samples=100)
    lead, r = found.lead, found.correlations
    assert r[lead.entropy].value < -0.5
    assert lead.difference.value == pytest.approx(abs(r[lead.history].value) - abs(r[lead.entropy].value))
    assert lead.difference.high < 0


def test_what_does_not_vary_is_undefined():
    log = planted(texts=6)
    for feature in FEATURES:
        if family_of(feature) == "history":
            log.values[:, NAMES.index(feature.name)] = 0.25
    found = analyse(log, folds=3, samples=10)
    assert found.correlations["accept_last"] is None
    assert found.lead is None
    assert found.strongest() is not None
    always = dataclasses.replace(log, accepted=np.full_like(log.accepted, 2))
    found = analyse(always, folds=3, samples=10)
    assert set(found.aurocs.values()) == {None}
    assert found.strongest() is None


def test_a_seed_fixes_everything():
    log = planted("accept_last", texts=6)
    first, again, other = (analyse(log, folds=3, samples=20, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_what_marks_a_text_tells_texts_apart_and_not_steps():
    log = planted()
    mood = np.random.default_rng(1).random(30)[log.generations]
    log.values[:, NAMES.index("accept_last")] = mood
    accepted = (mood + 0.5 * np.random.default_rng(2).random(len(mood)) > 0.75).astype(np.int64)
    found = analyse(dataclasses.replace(log, accepted=accepted), folds=3, samples=50)
    assert found.aurocs["history"].low > 0.7
    assert found.within["history"].value == pytest.approx(0.5, abs=0.1)
    step = analyse(planted("accept_last"), folds=3, samples=50)
    assert step.within["history"].low > 0.7
