import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp_env.decoding.draft import DraftPlan, draft_tree
from entmtp_env.trees import DraftTree, default_bank, published_trees
from tests.tiny import random_tree, tiny_backbone, tiny_heads

ARCHS = ("medusa", "hydra", "hydra-prefix")
CPU = torch.device("cpu")
CHAIN = DraftTree.chain(4)
UNION = default_bank().union


# Name, architecture and vocabulary of the deeper heads.
HEADS = {**{arch: (arch, 0) for arch in ARCHS}, "deep-vocab": ("hydra-prefix", 15)}


@pytest.fixture(params=HEADS, scope="module")
def heads(request):
    arch, deep_vocab = HEADS[request.param]
    return tiny_heads(tiny_backbone(), arch, pack=False, deep_vocab=deep_vocab).requires_grad_(False)


@pytest.fixture(scope="module")
def packed():
    return {arch: tiny_heads(tiny_backbone(), arch) for arch in ARCHS}


def situation(seed):
    torch.manual_seed(seed)
    return torch.randn(32), torch.randint(24, (1,))


def draft(heads, tree, seed, known=None):
    plan = DraftPlan(tree, None if known is None else known.tree, CPU)
    return draft_tree(heads, *situation(seed), tree, plan, known)


def naive(heads, tree, seed):
    """Tokens, confidences and log-probabilities node by node, from the definition."""
    state, root = situation(seed)
    tokens, confidence, log_probs = {(): int(root)}, {}, {}
    for node in tree.nodes:
        path = [tokens[node[:d]] for d in range(len(node))]
        reads = (
            [state, *(heads.embed(torch.tensor(token)) for token in path)] if heads.sequential else [state]
        )
        log_p = log_probs[node[:-1]] = torch.log_softmax(heads.logits(len(node), torch.cat(reads)), -1)
        order = sorted(range(len(log_p)), key=lambda i, p=log_p: -float(p[i]))
        best = order[node[-1]]
        tokens[node], confidence[node] = int(heads.vocab_ids[best]), float(log_p[best].exp())
    return tokens, confidence, log_probs


def count_rows(monkeypatch, heads):
    rows, logits = [], heads.logits
    monkeypatch.setattr(
        heads, "logits", lambda depth, inputs: rows.append(inputs.shape[0]) or logits(depth, inputs)
    )
    return rows


def expanded(tree):
    return {node[:-1] for node in tree.nodes}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tree", list(default_bank()), ids=lambda tree: tree.name)
def test_every_default_tree_equals_the_definition(heads, tree, seed):
    result = draft(heads, tree, seed)
    tokens, confidence, _ = naive(heads, tree, seed)
    assert result.tokens.tolist() == [tokens[node] for node in tree.nodes]
    expected = torch.tensor([confidence[node] for node in tree.nodes])
    torch.testing.assert_close(result.confidence, expected, atol=1e-6, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 40), st.integers(0, 1000))
def test_random_trees_equal_the_definition(packed, random, size, seed):
    tree = random_tree(random, size)
    for heads in packed.values():
        tokens, _, _ = naive(heads, tree, seed)
        assert draft(heads, tree, seed).tokens.tolist() == [tokens[node] for node in tree.nodes]


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 30), st.integers(0, 30), st.integers(0, 1000))
def test_a_known_draft_does_not_change_the_result(packed, random, size, known_size, seed):
    tree, known_tree = random_tree(random, size), random_tree(random, known_size)
    for heads in packed.values():
        for known in (known_tree, CHAIN, UNION):
            fresh, reused = draft(heads, tree, seed), draft(heads, tree, seed, draft(heads, known, seed))
            assert torch.equal(fresh.tokens, reused.tokens)
            torch.testing.assert_close(fresh.confidence, reused.confidence, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("known", [CHAIN, UNION], ids=["chain", "union"])
@pytest.mark.parametrize("tree", list(default_bank()), ids=lambda tree: tree.name)
def test_known_nodes_are_not_computed_again(heads, tree, known, monkeypatch):
    earlier = draft(heads, known, 0)
    rows = count_rows(monkeypatch, heads)
    draft(heads, tree, 0, earlier)
    new = expanded(tree) - expanded(known)
    if heads.sequential:
        assert sum(rows) == len(new)
    else:
        assert rows == [1] * len({len(node) for node in new})
    if known is UNION:
        assert rows == []


def test_a_level_is_one_call(heads, monkeypatch):
    """Each depth is drafted at once: by one row of a Medusa head, by one row per parent of a Hydra head."""
    tree = published_trees()["hydra-default"]
    rows = count_rows(monkeypatch, heads)
    draft(heads, tree, 0)
    parents = [sum(len(node) == depth for node in expanded(tree)) for depth in range(tree.depth)]
    assert rows == (parents if heads.sequential else [1] * tree.depth)


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_path_values_are_products_of_confidences(packed, random, size):
    tree = random_tree(random, size)
    result = draft(packed["hydra"], tree, size)
    value = {(): 1.0}
    for node, confidence in zip(tree.nodes, result.confidence.tolist(), strict=True):
        value[node] = value[node[:-1]] * confidence
    expected = torch.tensor([value[node] for node in tree.nodes])
    before = result.confidence.clone()
    torch.testing.assert_close(result.path_values(), expected, atol=1e-7, rtol=1e-5)
    assert torch.equal(result.confidence, before)


@pytest.mark.parametrize("known", [None, CHAIN, UNION], ids=["fresh", "chain", "union"])
@pytest.mark.parametrize("tree", [CHAIN, published_trees()["hydra-default"]], ids=["chain", "published"])
def test_chain_signals_equal_the_definition(heads, tree, known):
    result = draft(heads, tree, 5, None if known is None else draft(heads, known, 5))
    _, confidence, log_probs = naive(heads, tree, 5)
    values, entropies = result.chain()
    assert values == pytest.approx([confidence[(0,) * d] for d in range(1, 5)], rel=1e-4)
    expected = [torch.distributions.Categorical(logits=log_probs[(0,) * d]).entropy() for d in range(4)]
    scales = [math.log(heads.config.vocab_size(depth)) for depth in range(1, 5)]
    normalised = [float(entropy) / scale for entropy, scale in zip(expected, scales, strict=True)]
    assert entropies == pytest.approx(normalised, rel=1e-4)


def test_chain_signals_stop_where_the_tree_leaves_the_chain(heads):
    wide = DraftTree("wide", ((0,), (1,), (1, 0), (1, 0, 0)))
    values, entropies = draft(heads, wide, 0).chain()
    assert len(values) == len(entropies) == 1


def test_the_empty_tree_drafts_nothing(heads, monkeypatch):
    rows = count_rows(monkeypatch, heads)
    result = draft(heads, DraftTree("empty"), 0)
    assert (result.tokens.tolist(), result.path_values().tolist(), result.chain()) == ([], [], ([], []))
    assert (result.tokens.dtype, result.confidence.dtype) == (torch.int64, torch.float32)
    assert rows == []


def test_siblings_are_distinct_draftable_tokens(heads):
    tree = random_tree(Random(0), 40)
    result = draft(heads, tree, 1)
    draftable = set(heads.vocab_ids.tolist())
    for parent in expanded(tree):
        tokens = [int(result.tokens[i]) for i, node in enumerate(tree.nodes) if node[:-1] == parent]
        assert len(set(tokens)) == len(tokens)
        assert set(tokens) <= draftable
