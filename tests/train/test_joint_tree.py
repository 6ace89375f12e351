from random import Random

import pytest

from entmtp_env.decoding import GreedyRule, SampleRule, TypicalRule
from entmtp_env.trees import DraftTree
from entmtp_env.trees.frontier import START, candidates
from tests.tiny import random_tree, tiny_decoder
from train.joint_tree import JointTree, joint_step

VOCAB, CAP = 10, 16
PROMPTS = [[1 + seed % 9, 3, *range(3, 3 + seed % 4)] for seed in range(3)]
RULES = {
    "greedy": GreedyRule,
    "sample": SampleRule,
    "typical": lambda: TypicalRule(temperature=1.5, epsilon=0.05, alpha=0.3),
}
TREES = [START, random_tree(Random(1), 6)]


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder(seed=8, capacity=128, draft_vocab=VOCAB, vocab_size=VOCAB)


def accept_length(decoder, rule, tree):
    """Of a step with ``tree`` alone from the state that the decoder is in, which stays as it is."""
    tokens, _, logits = decoder.verify(decoder.draft(tree))
    return len(decoder.cut(rule.judge(tree, tokens, logits, decoder.length), tokens)[0]) - 1


@pytest.mark.parametrize("size", [3, 99])
@pytest.mark.parametrize("tree", TREES, ids=len)
@pytest.mark.parametrize("rule", RULES)
def test_scores_are_those_of_each_tree_alone(decoder, rule, tree, size):
    """T + ν drafted, verified and judged by itself at every state that T visits: the joint tree adds no bias.

    The candidates are in one joint tree, or in several of ``size`` each.
    """
    nodes = candidates(tree, 4)
    alone = [DraftTree("alone", (*tree.nodes, node)) for node in nodes]
    joints = [JointTree(tree, tuple(nodes[i : i + size])) for i in range(0, len(nodes), size)]
    own, expected, gains = RULES[rule](), dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0)
    for seed, prompt in enumerate(PROMPTS):
        decoder.start(prompt, own, max_new_tokens=CAP, seed=seed)
        path = []
        while not decoder.finish_reason:
            before = accept_length(decoder, own, tree)
            for node, one in zip(nodes, alone, strict=True):
                expected[node] += accept_length(decoder, own, one) - before
            accepted = joint_step(decoder, own, joints, gains)
            assert accepted == before
            path.append(accepted)
        reached = decoder.tokens, decoder.finish_reason
        # The trajectory is T's own.
        decoder.start(prompt, own, max_new_tokens=CAP, seed=seed)
        steps = []
        while not decoder.finish_reason:
            steps.append(decoder.step(tree).accept_length)
        assert (path, *reached) == (steps, decoder.tokens, decoder.finish_reason)
    assert gains == expected
    assert any(gains.values())


def test_without_candidates_the_tree_just_decodes(decoder):
    rule = GreedyRule()
    decoder.start([1, 3], rule, max_new_tokens=CAP)
    while not decoder.finish_reason:
        joint_step(decoder, rule, [JointTree(START, ())], {})
    tokens = decoder.tokens
    decoder.start([1, 3], max_new_tokens=CAP)
    while not decoder.finish_reason:
        decoder.step(START)
    assert tokens == decoder.tokens
