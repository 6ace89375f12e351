from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule, TypicalRule
from entmtp_env.decoding.static_accept import judge, rule_key
from entmtp_env.decoding.static_buffers import NoiseRing
from entmtp_env.decoding.static_tables import TreeTables
from tests.tiny import random_tree

CPU, VOCAB = torch.device("cpu"), 8
RULES = {"greedy": GreedyRule(), "sample": SampleRule(0.8), "typical": TypicalRule(0.8, 0.2, 0.9)}


def drafted(tree, logits, random):
    """Tokens of a tree, siblings distinct, often those that the base likes best."""
    tokens, random_order = [0], list(range(VOCAB))
    for node in tree.nodes:
        random.shuffle(random_order)
        parent = tree.rows[node[:-1]]
        taken = [tokens[row] for row in range(1, len(tokens)) if tree.parents[row] == parent]
        best = logits[parent].argsort(descending=True).tolist()
        order = best if random.random() < 0.7 else random_order
        tokens.append(next(token for token in order if token not in taken))
    return torch.tensor(tokens)


@pytest.mark.parametrize("name", RULES)
@given(st.integers(0, 10**6), st.integers(0, 20))
def test_verdicts_are_the_eager_ones(name, seed, size):
    random, rule, generator = Random(seed), RULES[name], torch.Generator().manual_seed(seed)
    tree, position = random_tree(random, size), seed % 50
    logits = 2 * torch.randn(size + 1, VOCAB, generator=generator)
    tokens = drafted(tree, logits, random)
    rule.start(seed)
    ring = NoiseRing(5, VOCAB, CPU)
    ring.start(seed)
    ring.fill(position + 1, position + 1 + tree.depth)
    expected = rule.judge(tree, tokens, logits, position)
    tables = TreeTables(tree, True, CPU)
    verdict = judge(rule, tables, tokens, logits, ring.values, torch.tensor([position]))
    rows = tables.paths[verdict.last][0][: len(expected.rows)].tolist()
    assert (rows, int(verdict.last)) == (expected.rows, expected.rows[-1])
    assert verdict.chosen[rows].tolist() == expected.next_tokens
    if len(tree):
        assert bool(verdict.stands[1]) == expected.first_draft_right


def test_the_longest_typical_path_wins_and_ties_go_by_likelihood():
    tree = random_tree(Random(0), 0)
    tree = type(tree)("two", ((0,), (1,), (0, 0), (1, 0)))
    logits = torch.tensor([[0.0, 1.0, 0.9, 0.0]] + [[1.0, 0.0, 0.0, 0.0]] * 4)
    tables, rule, zero = TreeTables(tree, True, CPU), TypicalRule(1.0, 0.1, 1.0), torch.zeros(1).long()

    def last(tokens):
        return int(judge(rule, tables, torch.tensor(tokens), logits, torch.zeros(5, 4), zero).last)

    assert last([0, 2, 1, 0, 0]) == 4  # both paths stand; 1 is likelier than 2
    assert last([0, 1, 2, 0, 0]) == 3
    logits[1] = torch.tensor([-9.0, 9, 0, 0])
    assert last([0, 1, 2, 0, 0]) == 4  # the likelier first draft leads nowhere


def test_keys_tell_rules_apart_and_know_no_others():
    class Own(GreedyRule):
        pass

    rules = [GreedyRule(), SampleRule(0.5), SampleRule(0.6), TypicalRule(), TypicalRule(alpha=0.4)]
    keys = [rule_key(rule) for rule in rules]
    assert len(set(keys)) == len(rules)
    assert rule_key(SampleRule(0.5)) == keys[1]
    assert rule_key(Own()) is None
