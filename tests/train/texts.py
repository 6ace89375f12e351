"""Random texts for the tests of training."""

import torch

from tests.tiny import VOCAB
from train.texts import Text


def random_texts(shapes, seed=0):
    torch.manual_seed(seed)
    return [
        Text(*(tuple(torch.randint(0, VOCAB, (n,)).tolist()) for n in (prompt, reply)))
        for prompt, reply in shapes
    ]
