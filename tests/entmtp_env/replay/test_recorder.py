import functools
from collections import Counter
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
import torch

from entmtp_env.decoding import TreeDecoder, make_acceptance
from entmtp_env.decoding.batch import generate_batch
from entmtp_env.decoding.ranks import NO_TOKEN
from entmtp_env.engine import Engine
from entmtp_env.features import root_shape
from entmtp_env.replay import recorder
from entmtp_env.replay.recorder import Recorder, Text, text_seed
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank
from entmtp_env.trees.walk import accept_lengths
from tests.tiny import EOS, random_tree, tiny_backbone, tiny_heads

# So small a vocabulary that 10 children of a node hold the next token: deep paths are accepted.
VOCAB, CAP, DEPTH = 11, 12, 4
WORDS = (" a", "b", "</s>", "7", "\n", " .", "x9", " é", "?!", "\n\n", " 4")
PROMPTS = [(1 + seed % 9, 3, *range(3, 3 + seed % 4)) for seed in range(10)]
RULES = ("greedy", "sample:temperature=0.9")


@dataclass(frozen=True)
class Words:
    """A tokenizer whose token ids are places in a list of words."""

    words: tuple = WORDS

    def encode(self, text, add_special_tokens):
        return [self.words.index("b")]

    def decode(self, tokens, skip_special_tokens=False):
        return "".join(self.words[t] for t in tokens if not (skip_special_tokens and t == EOS))


class CacheableEngine(Engine):
    __hash__ = object.__hash__


def engine_of(heads, backbone, words=WORDS):
    manifest = {"model_fingerprint": "m", "heads_fingerprint": "h", "dtype": str(backbone.dtype)}
    return CacheableEngine(backbone, heads, Words(words), frozenset({EOS}), manifest)


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra-prefix", "deep-vocab"])
def engine(request):
    """Heads that cannot draft one of the tokens, or deeper ones that cannot draft one token more."""
    if request.param == "deep-vocab":
        backbone = tiny_backbone(6, vocab_size=VOCAB + 1)
        heads = tiny_heads(backbone, "hydra", draft_vocab=VOCAB, deep_vocab=VOCAB - 1)
        return engine_of(heads, backbone, (*WORDS, "last"))
    backbone = tiny_backbone(3, vocab_size=VOCAB)
    return engine_of(tiny_heads(backbone, request.param, draft_vocab=VOCAB - 1), backbone)


@dataclass(frozen=True)
class Position:
    """What the live decoder knew before a step."""

    root: int
    base: tuple
    heads: tuple
    values: np.ndarray


def new_decoder(engine):
    return TreeDecoder(engine.backbone, engine.heads, capacity=128, eos_token_ids=engine.eos_token_ids)


def look(decoder, union):
    decoder.probe(DraftTree.chain(DEPTH))
    heads = decoder.head_signals()
    decoder.probe(union)
    return Position(decoder.root, decoder.base_signals(), heads, decoder.probe_values().numpy())


@functools.cache
def live(engine, acceptance):
    """Texts written by the live decoder token by token, and what it knew at each and behind the last."""
    decoder, union, texts, seen = new_decoder(engine), default_bank().union, [], []
    for number, prompt in enumerate(PROMPTS):
        seed = text_seed(3, f"p{number}", prompt)
        decoder.start(prompt, make_acceptance(acceptance), max_new_tokens=CAP, seed=seed)
        positions = []
        while not decoder.finish_reason:
            positions.append(look(decoder, union))
            decoder.step(AUTOREGRESSIVE)
        reason, decoder.finish_reason = decoder.finish_reason, ""
        positions.append(look(decoder, union))
        texts.append((Text(f"p{number}", prompt, seed, tuple(decoder.tokens)), reason))
        seen.append(positions)
    return texts, seen


@functools.cache
def recorded(engine, acceptance):
    texts, _ = live(engine, acceptance)
    return Recorder(engine, acceptance, CAP, default_bank().union).record([text for text, _ in texts])


def tree_along(path):
    """The tree in which ``path`` and what its siblings need is all there is."""
    return DraftTree("along", tuple((*path[:d], r) for d in range(DEPTH) for r in range(path[d] + 1)))


def rows_of(recording, number):
    return slice(recording.offsets[number], recording.offsets[number + 1])


@pytest.mark.parametrize("acceptance", RULES)
def test_replayed_steps_are_those_of_the_live_decoder(engine, acceptance):
    random, decoder, seen = Random(1), new_decoder(engine), Counter()
    texts, _ = live(engine, acceptance)
    recording = recorded(engine, acceptance)
    trees = [*default_bank(), *(random_tree(random, 1 + random.randrange(40), ranks=9) for _ in range(3))]
    first_rows = recording.ranks[recording.offsets[:-1][recording.lengths > DEPTH]]
    trees.append(next(tree_along(row.tolist()) for row in first_rows if 0 <= row.min() <= row.max() < VOCAB))
    for number, (text, reason) in enumerate(texts):
        ranks = recording.ranks[rows_of(recording, number)]
        for tree in trees:
            accepts = accept_lengths(tree, ranks)
            rule = make_acceptance(acceptance)
            decoder.start(text.prompt, rule, max_new_tokens=CAP, seed=text.seed)
            position = 0
            while not decoder.finish_reason:
                step = decoder.step(tree)
                assert step.accept_length == min(accepts[position], len(text.reply) - 1 - position)
                first = (ranks[position, 0] == 0) if len(tree) else None
                assert step.first_draft_right == first
                seen[step.accept_length] += 1
                position += len(step.tokens)
            assert (tuple(decoder.tokens), decoder.finish_reason) == (text.reply, reason)
    assert {0, 1, DEPTH} <= set(seen)


@pytest.mark.parametrize("acceptance", RULES)
def test_signals_are_those_of_the_live_decoder(engine, acceptance):
    """At every position of a text and behind its last token."""
    recording = recorded(engine, acceptance)
    positions = [position for positions in live(engine, acceptance)[1] for position in positions]
    assert recording.tokens.tolist() == [position.root for position in positions]
    base = np.array([position.base for position in positions])
    np.testing.assert_allclose(recording.base_top1, base[:, 0], atol=1e-5)
    np.testing.assert_allclose(recording.base_entropy, base[:, 1], atol=1e-5)
    heads = np.array([position.heads for position in positions])
    np.testing.assert_allclose(recording.head_top1, heads[:, 0], atol=1e-5)
    np.testing.assert_allclose(recording.head_entropy, heads[:, 1], atol=1e-5)
    shapes = [root_shape(engine.tokenizer.decode([position.root])) for position in positions]
    assert recording.root_shape.tolist() == list(map(list, shapes))
    assert len(set(shapes)) >= 5


@pytest.mark.parametrize("acceptance", RULES)
def test_path_values_are_those_of_the_probe(engine, acceptance):
    recording = recorded(engine, acceptance)
    values = np.array(
        [position.values for positions in live(engine, acceptance)[1] for position in positions]
    )
    np.testing.assert_allclose(recording.path_values, values, rtol=2**-10, atol=1e-6)
    assert recording.candidates.nodes == default_bank().union.nodes


@pytest.mark.parametrize("acceptance", RULES)
def test_texts_are_described(engine, acceptance):
    texts, _ = live(engine, acceptance)
    recording = recorded(engine, acceptance)
    assert [(t.prompt_id, t.prompt_tokens, t.seed, t.finish_reason, t.text) for t in recording.texts] == [
        (t.prompt_id, len(t.prompt), t.seed, reason, engine.decode(list(t.reply))) for t, reason in texts
    ]
    assert recording.lengths.tolist() == [len(t.reply) for t, _ in texts]
    assert {reason for _, reason in texts} == {"eos", "length"}
    expected = {"acceptance": acceptance, "max_new_tokens": CAP, "consistency": 1.0, "approximate": False}
    assert recording.manifest == engine.manifest | expected


def test_the_last_token_that_ranks_count_is_the_one_that_would_follow(engine):
    recording = recorded(engine, "greedy")
    for number in range(len(PROMPTS)):
        ranks = recording.ranks[rows_of(recording, number)]
        behind = np.arange(len(ranks))[:, None] + np.arange(1, DEPTH + 1) >= len(ranks)
        assert ((ranks == NO_TOKEN) == behind).all()


def test_texts_do_not_depend_on_their_batch(engine, monkeypatch):
    acceptance = RULES[1]
    together, texts = recorded(engine, acceptance), [text for text, _ in live(engine, acceptance)[0]]
    monkeypatch.setattr(recorder, "_TOKENS_PER_PASS", 40)
    monkeypatch.setattr(recorder, "_ROWS", 3)
    few = Recorder(engine, acceptance, CAP, default_bank().union).record(texts)
    alone = [Recorder(engine, acceptance, CAP, default_bank().union).record([text]) for text in texts]
    for got in (few, type(few).concatenate(alone)):
        assert got.texts == together.texts
        for name in ("offsets", "tokens", "ranks", "root_shape"):
            assert getattr(got, name).tolist() == getattr(together, name).tolist()
        for name in ("base_top1", "base_entropy", "head_top1", "head_entropy"):
            np.testing.assert_allclose(getattr(got, name), getattr(together, name), atol=1e-5)
        np.testing.assert_allclose(got.path_values, together.path_values, rtol=2**-9, atol=1e-6)


def test_a_recording_survives_its_file(engine, tmp_path):
    recording = recorded(engine, "greedy")
    recording.save(tmp_path / "r.npz")
    loaded = type(recording).load(tmp_path / "r.npz")
    again = type(recording).concatenate([loaded.select([0]), recording.select([1])])
    assert again.texts == recording.texts[:2]


def test_consistency_counts_what_the_rule_would_not_choose_again(engine):
    texts = [text for text, _ in live(engine, "greedy")[0]][:5]
    odd = texts[2]
    other = next(token for token in range(VOCAB) if token not in (EOS, odd.reply[-1]))
    texts[2] = Text(odd.prompt_id, odd.prompt, odd.seed, (*odd.reply[:-1], other))
    recording = Recorder(engine, "greedy", CAP).record(texts)
    total = sum(len(text.reply) for text in texts)
    assert recording.manifest["consistency"] == pytest.approx(1 - 1 / total)


def test_a_text_that_neither_ended_nor_reached_the_cap_ran_out_of_context(engine):
    text = Text("p", (3, 4), 0, (5, 6))
    assert Recorder(engine, "greedy", 3).record([text]).texts[0].finish_reason == "context"
    assert Recorder(engine, "greedy", 2).record([text]).texts[0].finish_reason == "length"
    ended = Text("p", (3, 4), 0, (5, EOS))
    assert Recorder(engine, "greedy", 2).record([ended]).texts[0].finish_reason == "eos"


def test_without_candidates_there_are_no_path_values(engine):
    recording = Recorder(engine, "greedy", CAP).record([Text("p", (3,), 0, (5, 6))])
    assert recording.path_values.shape == (3, 0)
    assert len(recording.candidates) == 0


def test_typical_is_recorded_only_as_an_approximation(engine):
    with pytest.raises(ValueError, match=r"'typical' the text depends on the trees.*approximate"):
        Recorder(engine, "typical")
    texts = [text for text, _ in live(engine, "greedy")[0]]
    recording = Recorder(engine, "typical", CAP, approximate=True).record(texts)
    assert recording.approximate
    assert recording.manifest["consistency"] == 1
    assert not Recorder(engine, "greedy", CAP, approximate=True).record(texts).approximate


@pytest.mark.parametrize("acceptance", [*RULES, "typical"])
def test_requests_ask_for_the_text_of_the_live_decoder(engine, acceptance):
    texts = [text for text, _ in live(engine, acceptance)[0]]
    asked = Recorder(engine, acceptance, CAP, approximate=True)
    replies = dict(
        generate_batch(
            engine.backbone, map(asked.request, texts), max_new_tokens=CAP, eos_token_ids=frozenset({EOS})
        )
    )
    assert [tuple(replies[i]) for i in range(len(texts))] == [text.reply for text in texts]


def test_a_text_may_fill_the_model_but_for_the_token_that_would_follow():
    backbone = tiny_backbone(3, vocab_size=VOCAB, max_position_embeddings=24)
    backbone_engine = engine_of(tiny_heads(backbone, draft_vocab=VOCAB - 1), backbone)
    asked = Recorder(backbone_engine, "greedy", CAP)
    fitting = Text("fits", (3, 4, 5) * 3 + (6, 7), 0)
    ((_, reply),) = generate_batch(backbone, [asked.request(fitting)], max_new_tokens=CAP)
    recording = asked.record([Text(fitting.prompt_id, fitting.prompt, 0, tuple(reply))])
    assert recording.lengths.tolist() == [CAP]
    assert recording.manifest["consistency"] == 1
    with pytest.raises(ValueError, match=r"prompt 'long' of 12 tokens needs 25 positions .* model has 24"):
        asked.request(Text("long", (3,) * 12, 0))


def test_texts_that_cannot_be_recorded_are_refused(engine):
    asked = Recorder(engine, "greedy", CAP)
    with pytest.raises(ValueError, match="without a reply cannot be recorded: b"):
        asked.record([Text("a", (3,), 0, (4,)), Text("b", (3,), 0)])
    with pytest.raises(ValueError, match="prompt id of its own"):
        asked.record([Text("a", (3,), 0, (4,)), Text("a", (4,), 0, (4,))])
    with pytest.raises(ValueError, match="4 heads"):
        Recorder(engine, candidates=DraftTree.chain(5))
    with pytest.raises(ValueError, match="hopeful"):
        Recorder(engine, "hopeful")


def test_seeds_differ_between_prompts_and_runs():
    seeds = [
        text_seed(*key) for key in [(0, "a", (1, 2)), (1, "a", (1, 2)), (0, "b", (1, 2)), (0, "a", (1, 3))]
    ]
    assert len(set(seeds)) == 4
    assert text_seed(0, "a", [1, 2]) == seeds[0]
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_bfloat16_gives_the_same_types():
    backbone = tiny_backbone(3, dtype=torch.bfloat16, vocab_size=VOCAB)
    asked = Recorder(engine_of(tiny_heads(backbone), backbone), "sample", CAP, DraftTree.chain(2))
    recording = asked.record([Text("p", (3, 4), 7, (5, 6, 7)), Text("q", (3,), 7, (8,))])
    assert 0 <= recording.manifest["consistency"] <= 1
    assert recording.lengths.tolist() == [3, 1]
