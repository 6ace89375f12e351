import pytest
import torch

from entmtp_env.decoding import TreeDecoder
from entmtp_env.trees import DraftTree
from tests.tiny import tiny_backbone, tiny_heads
from tests.train.texts import random_texts
from train.teacher_forcing import head_rows, make_batch
from train.texts import Text

ARCHS = ["medusa", "hydra", "hydra-prefix"]
DEPTH = 4
EMPTY = DraftTree("autoregressive")


def batch_of(backbone, texts):
    hidden = [backbone.forward_batch(torch.tensor([text.tokens]))[0] for text in texts]
    return make_batch(texts, hidden, torch.device("cpu"))


@pytest.mark.parametrize("arch", ARCHS)
@torch.no_grad()
def test_rows_are_those_of_a_loop_over_positions(arch):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch, DEPTH, pack=False)
    texts = random_texts([(3, 9), (1, 2), (7, 1), (2, 5), (1, 12)])
    rows = head_rows(heads, batch_of(backbone, texts))

    outputs, targets = [[] for _ in range(DEPTH)], [[] for _ in range(DEPTH)]
    teacher, tokens, first = [], [], 0
    for text in texts:
        ids, start = text.tokens, len(text.prompt)
        hidden = backbone.forward_batch(torch.tensor([ids]))[0]
        states = hidden if heads.prefix is None else heads.prefix(hidden[None])[0]
        for target in range(start, len(ids)):
            teacher.append(hidden[target - 1])
            tokens.append(ids[target])
        for depth in range(1, DEPTH + 1):
            for root in range(start, len(ids) - depth):
                inputs = [states[root - 1]]
                if heads.sequential:
                    inputs += [heads.embed(torch.tensor(token)) for token in ids[root : root + depth]]
                outputs[depth - 1].append(heads.output(depth, torch.cat(inputs)))
                targets[depth - 1].append(first + root + depth - start)
        first += len(ids) - start

    assert rows.tokens.tolist() == tokens
    torch.testing.assert_close(rows.teacher, torch.stack(teacher), rtol=1e-4, atol=1e-4)
    assert [t.tolist() for t in rows.targets] == targets
    for got, expected in zip(rows.outputs, outputs, strict=True):
        torch.testing.assert_close(got, torch.stack(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
@torch.no_grad()
def test_training_sees_what_the_decoder_drafts(arch):
    """A text that goes on as the heads draft: their logits on the greedy chain are the decoder's."""
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch, DEPTH, pack=False)
    decoder = TreeDecoder(backbone, heads, capacity=128, eos_token_ids=frozenset())
    decoder.start([3, 1, 4, 1, 5], max_new_tokens=40)
    texts, drafted = [], []
    while len(texts) < 6:
        decoder.step(EMPTY)
        decoder.step(DraftTree.chain(2))
        before = (3, 1, 4, 1, 5, *decoder.tokens)
        decoder.probe(DraftTree.chain(DEPTH))
        draft = decoder._draft
        texts.append(Text(before, (decoder.root, *draft.tokens.tolist())))
        drafted.append([level.logits[0] for level in draft.levels])

    rows = head_rows(heads, batch_of(backbone, texts))
    lm_head = backbone.lm_head_weight[heads.vocab_ids]
    for depth, outputs in enumerate(rows.outputs, start=1):
        # Each reply is the root and DEPTH drafts, so it has DEPTH + 1 - depth rows, the decoder's first.
        logits = (outputs @ lm_head.T)[:: DEPTH + 1 - depth]
        expected = torch.stack([levels[depth - 1] for levels in drafted])
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


def test_padding_changes_nothing():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, pack=False)
    short, long = random_texts([(3, 6), (2, 30)])
    alone = head_rows(heads, batch_of(backbone, [short]))
    padded = head_rows(heads, batch_of(backbone, [short, long]))
    for one, two in zip(alone.outputs, padded.outputs, strict=True):
        torch.testing.assert_close(two[: len(one)], one, rtol=1e-4, atol=1e-4)
