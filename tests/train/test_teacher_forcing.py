import dataclasses

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


def batch_of(backbone, texts, first_root=None):
    hidden = [backbone.forward_batch(torch.tensor([text.tokens]))[0] for text in texts]
    return make_batch(texts, hidden, torch.device("cpu"), first_root)


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


@pytest.mark.parametrize("arch", ARCHS)
@torch.no_grad()
def test_learned_prompts_are_rows_as_if_the_base_had_written_them(arch):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch, DEPTH, pack=False)
    texts = random_texts([(5, 6), (2, 3), (9, 2)])
    starts = [min(3, len(text.prompt)) for text in texts]
    earlier = [Text(text.tokens[:n], text.tokens[n:]) for text, n in zip(texts, starts, strict=True)]
    rows = head_rows(heads, batch_of(backbone, texts, first_root=3))
    expected = head_rows(heads, batch_of(backbone, earlier))
    torch.testing.assert_close(rows.outputs, expected.outputs)
    torch.testing.assert_close(rows.teacher, expected.teacher)
    assert all(torch.equal(one, two) for one, two in zip(rows.targets, expected.targets, strict=True))
    # The prompts' own tokens are not the base's.
    replies = [
        i >= len(text.prompt)
        for text, start in zip(texts, starts, strict=True)
        for i in range(start, len(text.tokens))
    ]
    assert rows.tokens.tolist() == [
        token if reply else -1 for token, reply in zip(expected.tokens.tolist(), replies, strict=True)
    ]


def test_padding_changes_nothing():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, pack=False)
    short, long = random_texts([(3, 6), (2, 30)])
    alone = head_rows(heads, batch_of(backbone, [short]))
    padded = head_rows(heads, batch_of(backbone, [short, long]))
    for one, two in zip(alone.outputs, padded.outputs, strict=True):
        torch.testing.assert_close(two[: len(one)], one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("arch", ARCHS)
@torch.no_grad()
def test_dropout_drops_inputs_and_keeps_their_mean(arch, monkeypatch):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch, DEPTH, pack=False)
    batch = batch_of(backbone, random_texts([(2, 40)] * 4))
    seen = {}
    monkeypatch.setattr(heads, "output", lambda depth, inputs: seen.setdefault(depth, []).append(inputs))
    head_rows(heads, batch)
    head_rows(heads, batch, dropout=0.25)
    for whole, dropped in seen.values():
        kept = dropped != 0
        assert (1 - kept.float().mean()).item() == pytest.approx(0.25, abs=0.03)
        torch.testing.assert_close(dropped[kept], whole[kept] / 0.75)


@torch.no_grad()
def test_noise_is_in_units_of_the_hidden_states_and_spares_the_teacher(monkeypatch):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, "medusa", 1, pack=False)
    batch = batch_of(backbone, random_texts([(2, 40)] * 8))
    batch = dataclasses.replace(batch, hidden=batch.hidden * torch.linspace(0.1, 10, 8)[:, None, None])
    seen = []
    monkeypatch.setattr(heads, "output", lambda depth, inputs: seen.append(inputs))
    clean, noisy = head_rows(heads, batch), head_rows(heads, batch, noise=0.2)
    assert torch.equal(clean.teacher, noisy.teacher)
    noise = (seen[1] - seen[0]) / seen[0].square().mean(-1, keepdim=True).sqrt()
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    by_text = noise.view(8, -1).std(-1)
    torch.testing.assert_close(by_text, torch.full((8,), 0.2), rtol=0.1, atol=0)
