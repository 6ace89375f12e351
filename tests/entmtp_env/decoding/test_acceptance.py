import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from entmtp_env.decoding import GreedyRule, SampleRule, TypicalRule, make_acceptance
from entmtp_env.decoding.noise import gumbel_noise
from entmtp_env.trees import DraftTree
from tests.tiny import random_tree, tiny_decoder

V = 9
SEEDS = st.integers(0, 2**32 - 1)


def random_verification(seed, size, peak=1.0):
    """A random tree, its tokens (siblings distinct, as drafted ones are), and random logits."""
    random, generator = Random(seed), torch.Generator().manual_seed(seed)
    tree = random_tree(random, size)
    siblings = {parent: random.sample(range(V), V) for parent in [(), *tree.nodes]}
    tokens = [random.randrange(V)] + [siblings[node[:-1]][node[-1]] for node in tree.nodes]
    return tree, torch.tensor(tokens), peak * torch.randn(size + 1, V, generator=generator)


def follow(tree, tokens, pick):
    """Walk down by paths, not rows: the token picked at each node, and the nodes it leads to."""
    path, picked = (), []
    while True:
        picked.append(pick(path))
        children = [n for n in tree.nodes if n[:-1] == path and tokens[tree.rows[n]] == picked[-1]]
        if not children:
            return [tree.rows[path[:d]] for d in range(len(path) + 1)], picked
        path = children[0]


@settings(deadline=None)
@given(SEEDS, st.integers(0, 30))
def test_greedy_equals_a_plain_follower(seed, size):
    tree, tokens, logits = random_verification(seed, size)
    verdict = GreedyRule().judge(tree, tokens, logits, 17)
    rows, picked = follow(tree, tokens, lambda path: max(range(V), key=lambda t: logits[tree.rows[path], t]))
    assert (verdict.rows, verdict.next_tokens) == (rows, picked)
    assert verdict.first_draft_right == (None if size == 0 else picked[0] == tokens[1])


@settings(deadline=None)
@given(SEEDS, st.integers(0, 30), st.floats(0.1, 3), st.integers(0, 1000))
def test_sample_equals_a_plain_follower(seed, size, temperature, position):
    tree, tokens, logits = random_verification(seed, size)
    rule = SampleRule(temperature)
    rule.start(seed)

    def pick(path):
        noise = gumbel_noise(seed, position + 1 + len(path), V)
        return max(range(V), key=lambda t: float(logits[tree.rows[path], t]) / temperature + float(noise[t]))

    verdict = rule.judge(tree, tokens, logits, position)
    assert (verdict.rows, verdict.next_tokens) == follow(tree, tokens, pick)


def test_start_rekeys_the_noise():
    rule, logits = SampleRule(), torch.zeros(1, 1000)
    picks = []
    for seed in (1, 2, 1):
        rule.start(seed)
        picks.append(int(rule.choose(logits, [5])))
    assert picks[0] == picks[2] != picks[1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sample_follows_the_softmax(temperature):
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5, 2.0]])
    rule, count = SampleRule(temperature), 4000
    picks = []
    for seed in range(count):
        rule.start(seed)
        picks.append(int(rule.choose(logits, [seed % 7])))
    expected = (logits[0] / temperature).softmax(-1).double() * count
    assert stats.chisquare(np.bincount(picks, minlength=5), expected.numpy(), sum_check=False).pvalue > 0.01


@pytest.mark.parametrize("tree", [DraftTree("empty"), DraftTree("wide", ((0,), (1,), (2,), (0, 0), (0, 1)))])
def test_sampled_texts_follow_the_model(tree):
    """Frequencies of whole texts of 2 tokens against the exact product of softmaxes."""
    vocab, count, prompt = 5, 1500, [3, 1]
    decoder = tiny_decoder(
        "hydra", eos=frozenset(), capacity=80, draft_vocab=4, vocab_size=vocab, initializer_range=0.15
    )
    backbone = decoder.backbone

    def distribution(tokens):
        hidden = backbone.forward(torch.tensor(tokens), backbone.new_cache(8))
        return backbone.logits(hidden[-1:])[0].double().softmax(-1)

    first = distribution(prompt)
    exact = torch.stack([first[t] * distribution([*prompt, t]) for t in range(vocab)]).flatten() * count
    observed = np.zeros(vocab * vocab)
    for seed in range(count):
        decoder.start(prompt, SampleRule(), max_new_tokens=2, seed=seed)
        while not decoder.finish_reason:
            decoder.step(tree)
        observed[decoder.tokens[0] * vocab + decoder.tokens[1]] += 1
    rare = exact.numpy() < 5
    observed, expected = (np.append(x[~rare], x[rare].sum()) for x in (observed, exact.numpy()))
    assert (~rare).sum() > 10
    assert stats.chisquare(observed[expected > 0], expected[expected > 0], sum_check=False).pvalue > 0.01


def typical_reference(tree, tokens, logits, temperature, epsilon, alpha):
    """Every path judged by itself, in plain Python; the longest wins, then the likeliest, then the first."""

    def softmax(row):
        scaled = [float(x) / temperature for x in logits[row]]
        top = max(scaled)
        total = sum(math.exp(x - top) for x in scaled)
        return [math.exp(x - top) / total for x in scaled]

    paths = [((), 0.0)]
    for node in tree.nodes:
        likelihood = 0.0
        for d in range(len(node)):
            p = softmax(tree.rows[node[:d]])
            entropy = -sum(x * math.log(x + 1e-5) for x in p)
            draft = p[int(tokens[tree.rows[node[: d + 1]]])]
            if not draft > min(epsilon, alpha * math.exp(-entropy)):
                break
            likelihood += math.log(draft)
        else:
            paths.append((node, likelihood))
    best = max(paths, key=lambda path: (len(path[0]), path[1]))[0]
    return [tree.rows[best[:d]] for d in range(len(best) + 1)]


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 25), st.floats(0.3, 2), st.floats(0.05, 1), st.floats(0.05, 1))
def test_typical_equals_a_plain_implementation(seed, size, temperature, epsilon, alpha):
    tree, tokens, logits = random_verification(seed, size)
    verdict = TypicalRule(temperature, epsilon, alpha).judge(tree, tokens, logits, 4)
    assert verdict.rows == typical_reference(tree, tokens, logits, temperature, epsilon, alpha)
    assert verdict.next_tokens == [int(logits[row].argmax()) for row in verdict.rows]


def test_typical_cases_are_not_all_trivial():
    """The comparison above means little unless deep paths are often accepted, and branches rejected."""
    lengths = [
        len(TypicalRule().judge(*random_verification(seed, 25, peak=2.0), 4).rows) - 1 for seed in range(200)
    ]
    assert {0, 1, 2, 3, 4} == set(lengths)


@settings(deadline=None)
@given(SEEDS, st.floats(0.05, 5), st.floats(0.01, 1), st.floats(0.01, 0.9), st.floats(0, 10))
def test_typical_always_accepts_the_arg_max(seed, temperature, epsilon, alpha, peak):
    """A distribution's top probability is at least exp(-H), so it exceeds any fraction of that."""
    tree, _, logits = random_verification(seed, 1, peak)
    tokens = torch.stack((torch.tensor(0), logits[0].argmax()))
    # At p = ε = 1 the strict inequality fails by definition.
    verdict = TypicalRule(temperature, min(epsilon, 0.99), alpha).judge(tree, tokens, logits, 4)
    assert verdict.rows == [0, 1]
    assert verdict.first_draft_right is True


@settings(deadline=None)
@given(SEEDS, st.integers(0, 10), st.floats(0.05, 20))
def test_temperature_does_not_change_the_root(seed, size, temperature):
    tree, tokens, logits = random_verification(seed, size)
    verdict = TypicalRule(temperature).judge(tree, tokens, logits, 4)
    assert verdict.next_tokens[-1] == int(logits[verdict.rows[-1]].argmax())
    assert TypicalRule(temperature).choose(logits, [0] * (size + 1)).tolist() == logits.argmax(-1).tolist()


def test_typical_ties_go_to_the_likelier_path():
    tree = DraftTree("pair", ((0,), (1,)))
    logits = torch.tensor([[1.0, 1.5, -9.0], [0.0, 0, 0], [0.0, 0, 0]])
    assert TypicalRule(1.0).judge(tree, torch.tensor([0, 0, 1]), logits, 4).rows == [0, 2]


def test_only_typical_is_lossy():
    assert (GreedyRule.lossless, SampleRule.lossless, TypicalRule.lossless) == (True, True, False)


def test_rules_from_specs():
    assert isinstance(make_acceptance("greedy"), GreedyRule)
    assert make_acceptance("sample:temperature=0.7").temperature == 0.7
    typical = make_acceptance("typical:epsilon=0.1,alpha=0.2")
    assert (typical.temperature, typical.epsilon, typical.alpha) == (0.7, 0.1, 0.2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("greddy", "'greddy' is unknown; expected greedy, sample, typical"),
        ("sample:0.7", "unknown"),
        ("greedy@file.json", "unknown"),
        ("greedy:temperature=1", "takes no arguments"),
        ("sample:temperature=0", "must be > 0"),
        ("sample:temperature=hot", "sample:temperature=hot"),
        ("typical:epsilon=0", r"epsilon, alpha in \(0, 1\]"),
        ("typical:alpha=1.5", r"epsilon, alpha in \(0, 1\]"),
        ("typical:temperature=-1", "temperature > 0"),
    ],
)
def test_bad_specs_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        make_acceptance(spec)
