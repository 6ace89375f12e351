import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eval.regimes_classifier import assign_folds, out_of_fold_scores
from eval.regimes_statistics import auroc

GENERATIONS, STEPS, FOLDS = 60, 15, 3


@pytest.fixture
def data():
    """Generations, folds of theirs, noise to learn from, and labels of nothing."""
    rng = np.random.default_rng(0)
    generations = np.arange(GENERATIONS).repeat(STEPS)
    dealt = assign_folds([f"text {i}" for i in range(GENERATIONS)], FOLDS, seed=0)
    features = rng.random((len(generations), 3)).astype(np.float32)
    return generations, dealt, features, rng.random(len(generations)) < 0.4


def skill(scores, positive, generations, dealt):
    return auroc(scores, positive, generations, dealt, np.ones((1, GENERATIONS)))[0]


@given(st.lists(st.text(max_size=2), min_size=1, max_size=40), st.integers(3, 8), st.integers(0, 99))
def test_equal_texts_share_a_fold_and_folds_are_of_equal_size(texts, folds, seed):
    distinct = set(texts)
    if folds > len(distinct):
        with pytest.raises(ValueError, match=f"folds={folds} must be 3 .* to {len(distinct)}, the number"):
            assign_folds(texts, folds, seed)
        return
    dealt = assign_folds(texts, folds, seed)
    assert len(set(zip(texts, dealt.tolist(), strict=True))) == len(distinct)
    sizes = [len({t for t, f in zip(texts, dealt, strict=True) if f == fold}) for fold in range(folds)]
    assert sum(sizes) == len(distinct)
    assert max(sizes) - min(sizes) <= 1


def test_two_folds_are_too_few():
    with pytest.raises(ValueError, match="folds=2"):
        assign_folds(list("abcdef"), 2, seed=0)


def test_a_signal_is_found_even_if_it_is_no_straight_line(data):
    generations, dealt, features, _ = data
    positive = np.abs(features[:, 1] - 0.5) < 0.2
    assert skill(out_of_fold_scores(features, positive, dealt[generations], 0), *(positive, *data[:2])) > 0.9


def test_where_there_is_nothing_to_find_the_skill_is_that_of_a_coin(data):
    generations, dealt, features, positive = data
    scores = out_of_fold_scores(features, positive, dealt[generations], 0)
    assert skill(scores, positive, generations, dealt) == pytest.approx(0.5, abs=0.06)


def test_what_marks_a_text_is_of_no_use(data):
    # Steps of a text are alike in features and label: split by steps it is learnt by heart, by texts not.
    generations, dealt, _, _ = data
    rng = np.random.default_rng(1)
    marks = rng.random((GENERATIONS, 8)).astype(np.float32)[generations]
    positive = (rng.random(GENERATIONS) < 0.5)[generations]
    leaking = out_of_fold_scores(marks, positive, rng.integers(FOLDS, size=len(generations)), 0)
    assert skill(leaking, positive, generations, np.zeros(GENERATIONS, dtype=int)) > 0.85
    held_out = out_of_fold_scores(marks, positive, dealt[generations], 0)
    assert skill(held_out, positive, generations, dealt) == pytest.approx(0.5, abs=0.15)


def test_no_label_and_no_other_step_of_a_fold_reaches_its_scores(data):
    generations, dealt, features, positive = data
    folds = dealt[generations]
    scores = out_of_fold_scores(features, positive, folds, 0)
    for fold in range(FOLDS):
        (test,) = np.nonzero(folds == fold)
        changed, labels = features.copy(), positive.copy()
        changed[test[1:]] += 7
        labels[test] ^= True
        again = out_of_fold_scores(changed, labels, folds, 0)
        assert again[test[0]] == pytest.approx(scores[test[0]], rel=1e-5)
        assert not np.allclose(again[folds != fold], scores[folds != fold])


def test_a_seed_fixes_the_scores_and_leaves_torch_alone(data):
    generations, dealt, features, positive = data
    before = torch.random.get_rng_state()
    first, second, other = (
        out_of_fold_scores(features, positive, dealt[generations], seed) for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert not np.allclose(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_feature_that_is_constant_in_training_is_not_blown_up(data):
    generations, dealt, features, positive = data
    features[:, 0] = np.float32(0.1)
    assert np.abs(out_of_fold_scores(features, positive, dealt[generations], 0)).max() < 5
