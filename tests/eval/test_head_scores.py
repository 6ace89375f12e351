import numpy as np
import pytest

from entmtp_env.decoding.ranks import NO_TOKEN, NOT_DRAFTABLE, TokenRanks
from entmtp_env.trees import published_trees
from entmtp_env.trees.best import best_trees
from entmtp_env.trees.walk import accept_lengths, decode_steps
from eval.head_scores import BEST_SIZES, best_trees_of, fixed_trees, found, score_sets


def text_of(ranks):
    ranks = np.array(ranks, dtype=np.int32)
    return TokenRanks(ranks, *np.full((2, *ranks.shape), 0.5, dtype=np.float32))


def random_text(seed, tokens=50, depth=4):
    draw = np.random.default_rng(seed)
    ranks = draw.geometric(0.5, (tokens, depth)) - 1
    for d in range(depth):
        ranks[max(0, tokens - 1 - d) :, d] = NO_TOKEN
    return text_of(ranks)


def steps(tree, text):
    return len(decode_steps(accept_lengths(tree, text.ranks)))


def test_found_is_conditional_on_every_lower_depth():
    ranks = np.array(
        [[0, 0], [0, 2], [3, 0], [2, 3], [NOT_DRAFTABLE, 0], [9, 8], [1, NO_TOKEN], [NO_TOKEN, NO_TOKEN]]
    )
    shares = found(ranks)
    assert shares[1] == pytest.approx([2 / 7, 1 / 2])
    assert shares[4] == pytest.approx([5 / 7, 4 / 4])
    assert shares[10] == pytest.approx([6 / 7, 5 / 5])


def test_nothing_is_said_of_a_depth_that_was_never_reached():
    assert found(np.array([[1, 0], [5, 0]]))[1] == [0.0, None]


def test_a_text_known_by_heart():
    """First drafts right but one; the last token has nothing behind it; one token cannot be drafted."""
    text = text_of([[0, 0], [0, 1], [1, 0], [0, NOT_DRAFTABLE], [NOT_DRAFTABLE, NO_TOKEN], [NO_TOKEN] * 2])
    scores = score_sets({"a": [text]}, samples=10)
    assert list(scores) == ["a"]
    own = scores["a"]
    assert (own.texts, own.tokens) == (1, 6)
    assert own.coverage == pytest.approx(4 / 5)
    assert own.first_draft.value == pytest.approx(3 / 5)
    assert own.first_draft.low is None
    # chain-1: 0 -> 2 -> 3 -> 5; chain-2: 0 -> 3 -> 5.
    assert own.tau["chain-1"].value == pytest.approx(6 / 4)
    assert own.tau["chain-2"].value == pytest.approx(6 / 3)
    assert list(own.tau) == ["chain-1", "chain-2", "best-8", "best-16", "best-32"]


def test_trees_deeper_than_the_heads_are_left_out():
    assert [tree.name for tree in fixed_trees(4)] == [*(f"chain-{d}" for d in (1, 2, 3, 4)), "hydra-default"]
    assert [tree.name for tree in fixed_trees(2)] == ["chain-1", "chain-2"]


def test_tau_is_that_of_all_texts_together_with_an_interval_around_it():
    sets = {
        name: [random_text(seed + i, 20 + 9 * i) for i in range(7)] for seed, name in ((0, "a"), (50, "b"))
    }
    scores = score_sets(sets, samples=500)
    tree = published_trees()["hydra-default"]
    for name, texts in {**sets, "pooled": sets["a"] + sets["b"]}.items():
        ratio = scores[name].tau["hydra-default"]
        expected = sum(len(text.ranks) for text in texts) / sum(steps(tree, text) for text in texts)
        assert ratio.value == pytest.approx(expected)
        assert ratio.low < ratio.value < ratio.high
        assert scores[name].texts == len(texts)
        hits = sum((text.ranks[:, 0] == 0).sum() for text in texts)
        first = scores[name].first_draft
        assert first.value == pytest.approx(hits / sum(len(text.ranks) - 1 for text in texts))
        assert first.value == pytest.approx(scores[name].found[1][0])
        assert first.low < first.value < first.high


def test_best_trees_decode_the_texts_that_they_were_not_fitted_on():
    sets = {name: [random_text(seed + i) for i in range(5)] for seed, name in ((0, "a"), (50, "b"))}
    halves = [[t for texts in sets.values() for t in texts[parity::2]] for parity in (0, 1)]
    fitted = [best_trees(np.concatenate([text.ranks for text in half]), BEST_SIZES) for half in halves]
    scores = score_sets(sets, samples=10)
    for i, size in enumerate(BEST_SIZES):
        counts = [steps(fitted[1 - k % 2][i], text) for k, text in enumerate(sets["b"])]
        assert scores["b"].tau[f"best-{size}"].value == pytest.approx(250 / sum(counts))


def test_the_best_trees_are_those_of_all_positions():
    texts = [random_text(0), random_text(1)]
    pooled = np.concatenate([text.ranks for text in texts])
    assert best_trees_of(texts) == best_trees(pooled, BEST_SIZES)


def test_a_reply_of_one_token_counts_a_step_and_no_draft():
    alone = score_sets({"a": [text_of([[NO_TOKEN] * 4])]}, samples=10)["a"]
    assert alone.first_draft is None
    assert alone.tau["chain-4"].value == 1
    assert alone.found[1] == [None] * 4
    both = score_sets({"a": [text_of([[NO_TOKEN] * 4]), random_text(0)]}, samples=10)["a"]
    assert both.tokens == 51
    assert both.first_draft.value == pytest.approx(both.found[1][0])
