import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train.distill_loss import distill_loss
from train.sampled_softmax import sample_tokens

VOCAB = 40


@given(
    labels=st.lists(st.integers(-1, VOCAB - 1), max_size=60),
    count=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_what_is_chosen(labels, count, seed):
    torch.manual_seed(seed)
    labels = torch.tensor(labels, dtype=torch.int64)
    sample = sample_tokens(labels, VOCAB, count)
    chosen = sample.ids.tolist()
    assert len(set(chosen)) == len(chosen)
    assert set(range(min(VOCAB, count // 2))) <= set(chosen)
    known = labels >= 0
    assert torch.equal(sample.labels >= 0, known)
    assert torch.equal(sample.ids[sample.labels[known]], labels[known])
    # The labels come on top of what was asked for.
    assert min(count, VOCAB) <= len(chosen) <= count + len(labels[known].unique())
    # Labels and frequent tokens stand for themselves, and all together for the whole vocabulary.
    certain = set(labels[known].tolist()) | set(range(count // 2))
    weights = sample.log_weight.exp()
    assert all(w == 1 for token, w in zip(chosen, weights.tolist(), strict=True) if token in certain)
    assert weights.sum().item() == pytest.approx(VOCAB, rel=1e-5)


def test_the_denominator_is_right_on_average():
    """Over all possible draws, each as likely as the others, by counting."""
    torch.manual_seed(0)
    logits, labels, count = torch.randn(8, dtype=torch.float64), torch.tensor([5]), 4
    # 0 and 1 as the most frequent, 5 as a label; two of the other five are drawn.
    certain, others = [0, 1, 5], [2, 3, 4, 6, 7]
    draws = list(itertools.combinations(others, 2))
    denominators = [logits[certain].exp().sum() + 5 / 2 * logits[list(draw)].exp().sum() for draw in draws]
    assert torch.stack(denominators).mean().item() == pytest.approx(logits.exp().sum().item())

    seen = {}
    for _ in range(400):
        sample = sample_tokens(labels, 8, count)
        drawn = tuple(sorted(set(sample.ids.tolist()) - set(certain)))
        seen[drawn] = (logits[sample.ids] + sample.log_weight).exp().sum()
    assert set(seen) == set(draws)
    for draw, expected in zip(draws, denominators, strict=True):
        assert seen[draw].item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 12])
def test_many_draws_come_close_to_the_full_denominator(count):
    torch.manual_seed(1)
    logits = torch.randn(VOCAB).double()
    labels = torch.tensor([3, -1, 30])
    draws = []
    for _ in range(3000):
        sample = sample_tokens(labels, VOCAB, count)
        draws.append((logits[sample.ids] + sample.log_weight).exp().sum())
    draws = torch.stack(draws)
    error = draws.std().item() / math.sqrt(len(draws))
    assert draws.mean().item() == pytest.approx(logits.exp().sum().item(), abs=4 * error)


@pytest.mark.parametrize("count", [VOCAB, VOCAB + 1, 3 * VOCAB])
def test_as_many_as_there_are_is_exact(count):
    sample = sample_tokens(torch.tensor([4, -1, 39]), VOCAB, count)
    assert sorted(sample.ids.tolist()) == list(range(VOCAB))
    assert not sample.log_weight.any()


def test_gradients_of_sampled_losses_average_to_that_of_all_tokens():
    torch.manual_seed(2)
    output, teacher, lm_head = torch.randn(3, 6), torch.randn(3, 6), torch.randn(VOCAB, 6)
    labels = torch.tensor([0, 7, -1])

    def gradient(labels, lm_head, log_weight=None):
        outputs = [output.clone().requires_grad_()]
        losses, _ = distill_loss(outputs, [torch.arange(3)], teacher, labels, lm_head, 0.5, log_weight)
        return torch.autograd.grad(losses.sum(), outputs)[0]

    full = gradient(labels, lm_head)
    estimates = []
    for _ in range(300):
        sample = sample_tokens(labels, VOCAB, 24)
        estimates.append(gradient(sample.labels, lm_head[sample.ids], sample.log_weight))
    error = (torch.stack(estimates).mean(0) - full).norm() / full.norm()
    unweighted = (gradient(sample.labels, lm_head[sample.ids]) - full).norm() / full.norm()
    # The ratio of two estimates has a small bias.
    assert error < 0.1
    assert error < unweighted / 2
