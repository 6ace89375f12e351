"""The paper's probe network: is no draft of the next step accepted? Asked only about unseen texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from eval.regimes_statistics import Flags, Floats, Ints

_HIDDEN = (64, 32)
_DROPOUT = 0.4
_BATCH = 256
_LEARNING_RATE = 1e-3
_EPOCHS, _PATIENCE = 100, 8
_CLIP = 10.0


def assign_folds(texts: Sequence[str], folds: int, seed: int) -> Ints:
    """Deal generations into folds of equal size at random; equal texts go into the same one.

    Args:
        texts: Text of each generation, G of them.
        folds: Number of folds.
        seed: Seed of the dealing.

    Returns:
        Fold of each generation, ``(G,)``.

    Raises:
        ValueError: When there are fewer than three folds (to learn from, to stop by, to test on), or fewer
            different texts than folds.
    """
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    if not 3 <= folds <= len(distinct):
        raise ValueError(
            f"folds={folds} must be 3 (to learn from, to stop by, to test on) to {len(distinct)}, the number "
            "of different texts"
        )
    dealt = np.random.default_rng(seed).permutation(len(distinct)) % folds
    return dealt[[distinct[text] for text in texts]]


def out_of_fold_scores(
    features: npt.NDArray[np.floating],
    positive: Flags,
    folds: Ints,
    seed: int,
    advance: Callable[[], None] = lambda: None,
) -> Floats:
    """Score every step by a network that has seen no step of its fold.

    For each fold, a multilayer perceptron (64-32-1, ReLU, dropout 0.4) learns from the others but the next
    one, and keeps the weights that are best on that one.

    Args:
        features: ``(M, F)``.
        positive: ``(M,)``.
        folds: Fold of each step, ``(M,)``, numbered from 0.
        seed: Seed of weights, order and dropout.
        advance: Called after each fold.

    Returns:
        Logits of "positive", ``(M,)``.
    """
    scores, count = np.empty(len(folds)), int(folds.max()) + 1
    for fold in range(count):
        test, validation = folds == fold, folds == (fold + 1) % count
        training = ~(test | validation)
        mean, scale = features[training].mean(axis=0), features[training].std(axis=0)
        scaled = np.clip((features - mean) / np.where(scale < 1e-3, 1, scale), -_CLIP, _CLIP)
        inputs, labels = (torch.as_tensor(v, dtype=torch.float32) for v in (scaled, positive))
        network = _fit(inputs[training], labels[training], inputs[validation], labels[validation], seed)
        with torch.no_grad():
            scores[test] = network(inputs[test])[:, 0].numpy()
        advance()
    return scores


def _fit(
    inputs: torch.Tensor,
    labels: torch.Tensor,
    held_inputs: torch.Tensor,
    held_labels: torch.Tensor,
    seed: int,
) -> nn.Module:
    """The network with the least loss on the held-out steps; its caller's random state is untouched."""
    loss = nn.functional.binary_cross_entropy_with_logits
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(inputs.shape[1], _HIDDEN[0]),
            nn.ReLU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(*_HIDDEN),
            nn.ReLU(),
            nn.Dropout(_DROPOUT),
            nn.Linear(_HIDDEN[1], 1),
        )
        optimizer = torch.optim.Adam(network.parameters(), _LEARNING_RATE)
        best, least, since = deepcopy(network.state_dict()), float("inf"), 0
        for _ in range(_EPOCHS):
            network.train()
            for rows in torch.randperm(len(inputs)).split(_BATCH):
                optimizer.zero_grad()
                loss(network(inputs[rows])[:, 0], labels[rows]).backward()
                optimizer.step()
            network.eval()
            with torch.no_grad():
                error = float(loss(network(held_inputs)[:, 0], held_labels))
            since += 1
            if error < least:
                best, least, since = deepcopy(network.state_dict()), error, 0
            if since == _PATIENCE:
                break
    network.load_state_dict(best)
    return network.eval()
