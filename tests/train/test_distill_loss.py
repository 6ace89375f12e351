import math

import pytest
import torch

import train.distill_loss
from train.distill_loss import distill_loss

TARGETS, WIDTH, VOCAB = 13, 6, 9
ALL = tuple(range(TARGETS))
RAGGED = ((0, 2, 3, 4, 7, 8, 12), (1, 3, 4, 8), (12,))


def reference(outputs, targets, teacher, labels, lm_head, hard_weight, log_weight=0.0):
    """Row by row, with autograd through all logits."""
    soft = torch.softmax(teacher @ lm_head.T + log_weight, -1)
    losses, rank0 = [], []
    for output, target in zip(outputs, targets, strict=True):
        log_p = torch.log_softmax(output @ lm_head.T + log_weight, -1)
        rows = []
        for row, t in enumerate(target.tolist()):
            expected = -(soft[t] * log_p[row]).sum()
            if labels[t] >= 0:
                expected = (1 - hard_weight) * expected - hard_weight * log_p[row, labels[t]]
            rows.append(expected)
        losses.append(torch.stack(rows).mean() if rows else torch.zeros(()))
        right = [log_p[row].argmax() == labels[t] for row, t in enumerate(target)]
        rank0.append(sum(map(float, right)) / max(1, len(right)))
    return torch.stack(losses), torch.tensor(rank0)


def example(targets, seed=0):
    torch.manual_seed(seed)
    outputs = [torch.randn(len(t), WIDTH, requires_grad=True) for t in targets]
    labels = torch.randint(-1, VOCAB, (TARGETS,))
    labels[[3, 12]] = -1
    index = [torch.tensor(t, dtype=torch.int64) for t in targets]
    return outputs, index, torch.randn(TARGETS, WIDTH), labels, torch.randn(VOCAB, WIDTH)


@pytest.mark.parametrize("block", [1, 4, TARGETS - 1, TARGETS, 128])
@pytest.mark.parametrize("hard_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("targets", [(ALL,), (ALL, ALL[1:], ALL[2:]), RAGGED, (ALL, ()), ((), (5,))])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_are_autograds(monkeypatch, block, hard_weight, targets, weighted):
    monkeypatch.setattr(train.distill_loss, "_BLOCK", block)
    outputs, index, teacher, labels, lm_head = example(targets)
    weights = torch.tensor([1.0, 0.9, 0.5])[: len(targets)]

    args = (index, teacher, labels, lm_head, hard_weight, *([torch.randn(VOCAB)] if weighted else []))

    expected, expected_rank0 = reference(outputs, *args)
    expected_gradients = torch.autograd.grad(expected @ weights, outputs, allow_unused=True)
    losses, rank0 = distill_loss(outputs, *args)
    gradients = torch.autograd.grad(losses @ weights, outputs)

    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(rank0, expected_rank0)
    for gradient, wanted, output in zip(gradients, expected_gradients, outputs, strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(output) if wanted is None else wanted)


def test_weights_of_one_over_all_tokens_in_any_order_change_nothing():
    outputs, index, teacher, labels, lm_head = example(RAGGED)
    order = torch.randperm(VOCAB)
    place = torch.where(labels >= 0, order.argsort()[labels], -1)
    expected, expected_rank0 = distill_loss(outputs, index, teacher, labels, lm_head, 0.3)
    losses, rank0 = distill_loss(outputs, index, teacher, place, lm_head[order], 0.3, torch.zeros(VOCAB))
    torch.testing.assert_close(losses, expected)
    assert torch.equal(rank0, expected_rank0)


def test_a_weight_stands_for_as_many_equal_tokens():
    """Two tokens with the same row of the LM head are one with twice the weight."""
    outputs, index, teacher, labels, lm_head = example((ALL,))
    labels = labels.clamp_max(VOCAB - 2)
    doubled = torch.cat((lm_head, lm_head[-1:]))
    weight = torch.zeros(VOCAB)
    weight[-1] = math.log(2)
    gradients = []
    for rows, log_weight in ((doubled, None), (lm_head, weight)):
        losses, _ = distill_loss(outputs, index, teacher, labels, rows, 0.3, log_weight)
        gradients.append(torch.autograd.grad(losses.sum(), outputs)[0])
    torch.testing.assert_close(*gradients)


def test_rank0_counts_the_written_token_on_top():
    _, index, _, _, _ = example((ALL, ALL))
    labels = torch.arange(TARGETS) % VOCAB
    lm_head = torch.eye(VOCAB)
    right = torch.nn.functional.one_hot(labels, VOCAB).float()
    losses, rank0 = distill_loss(
        [right, right.roll(1, dims=-1)], index, torch.randn(TARGETS, VOCAB), labels, lm_head, 1.0
    )
    assert rank0.tolist() == [1.0, 0.0]
    assert losses[0] < losses[1]
    assert not rank0.requires_grad


def test_unlikely_tokens_stay_finite():
    outputs, index, teacher, labels, lm_head = example((ALL,))
    losses, _ = distill_loss([outputs[0] * 1e4], index, teacher * 1e4, labels, lm_head, 0.3)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(outputs[0].grad).all()


def test_bfloat16_products_come_close():
    outputs, index, teacher, labels, lm_head = example(RAGGED)
    expected, _ = reference(outputs, index, teacher, labels, lm_head, 0.3)
    losses, _ = distill_loss(outputs, index, teacher.bfloat16(), labels, lm_head.bfloat16(), 0.3)
    torch.testing.assert_close(losses, expected, rtol=0.03, atol=0.03)
    losses.sum().backward()
    assert outputs[0].grad.dtype is torch.float32
