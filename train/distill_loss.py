"""The distillation loss over a large vocabulary, without keeping its activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_BLOCK = 128


class _DistillLoss(torch.autograd.Function):
    """Losses and their gradients with respect to the outputs, in one pass over blocks of target tokens.

    The LM head is frozen, so softmax and gradient are formed while a block's logits are in cache; autograd
    would keep several float32 copies of all logits. A block's soft target serves every depth.
    """

    @staticmethod
    def forward(
        ctx: Any,
        teacher: Tensor,
        labels: Tensor,
        lm_head: Tensor,
        log_weight: Tensor | None,
        hard_weight: float,
        targets: Sequence[Tensor],
        *outputs: Tensor,
    ) -> tuple[Tensor, Tensor]:
        edges = range(0, len(labels), _BLOCK)
        bounds = torch.tensor([*edges, len(labels)], device=labels.device)
        starts = [torch.searchsorted(t, bounds).tolist() for t in targets]
        gradients = [torch.empty_like(output) for output in outputs]
        sums = torch.zeros(2, len(outputs))
        for block, start in enumerate(edges):
            known = labels[start : start + _BLOCK] >= 0
            index = labels[start : start + _BLOCK].clamp_min(0)[:, None]
            soft = torch.softmax(_logits(teacher[start : start + _BLOCK], lm_head, log_weight), -1)
            # A token outside the draft vocabulary is learned from the soft target alone.
            hard = hard_weight * known.float()[:, None]
            soft.mul_(1 - hard).scatter_add_(1, index, hard)
            for depth, output in enumerate(outputs):
                rows = slice(starts[depth][block], starts[depth][block + 1])
                local = targets[depth][rows] - start
                logits = _logits(output[rows], lm_head, log_weight)
                if not len(logits):
                    continue
                target = soft if len(local) == len(soft) else soft[local]
                top, best = logits.max(-1, keepdim=True)
                sums[1, depth] += (best == index[local])[known[local]].sum().cpu()
                dot = torch.linalg.vecdot(target, logits).sum()
                residual = logits.sub_(top).exp_()
                norm = residual.sum(-1, keepdim=True)
                sums[0, depth] += ((top + norm.log()).sum() - dot).cpu()
                residual.div_(norm).sub_(target)
                gradients[depth][rows] = (residual.to(lm_head.dtype) @ lm_head).to(output.dtype)
        counts = torch.tensor([float(max(1, len(output))) for output in outputs])
        ctx.gradients, ctx.counts = gradients, counts
        losses, rank0 = (sums / counts).to(teacher.device)
        ctx.mark_non_differentiable(rank0)
        return losses, rank0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scales = grads[0] / ctx.counts.to(grads[0].device)
        scaled = (g.mul_(s.to(g.dtype)) for g, s in zip(ctx.gradients, scales, strict=True))
        return None, None, None, None, None, None, *scaled


def _logits(hidden: Tensor, lm_head: Tensor, log_weight: Tensor | None) -> Tensor:
    logits = (hidden.to(lm_head.dtype) @ lm_head.T).float()
    return logits if log_weight is None else logits.add_(log_weight)


def distill_loss(
    outputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    teacher: Tensor,
    labels: Tensor,
    lm_head: Tensor,
    hard_weight: float,
    log_weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cross entropy of each depth's head against the base's distribution and the token it really wrote.

    Both distributions are over the draft vocabulary or a sample of it, by the same frozen LM head.

    Args:
        outputs: Per depth, head outputs ``(rows_d, hidden_size)``; gradients flow to them, once.
        targets: Per depth, which target each row predicts, ``(rows_d,)``, ascending.
        teacher: The base's hidden states that predict the targets, ``(targets, hidden_size)``.
        labels: The written tokens' rows of ``lm_head``, ``(targets,)``; -1 when they have none.
        lm_head: Rows of the LM head, ``(tokens, hidden_size)``; its dtype is that of the products.
        hard_weight: Weight of the written token in [0, 1]; the rest goes to the soft target.
        log_weight: Added to all logits, ``(tokens,)``; see :mod:`train.sampled_softmax`.

    Returns:
        Mean loss in nats per depth, and the share of rows whose best token is the written one (no gradient);
        both 0 at a depth without rows.
    """
    return _DistillLoss.apply(teacher, labels, lm_head, log_weight, hard_weight, tuple(targets), *outputs)
