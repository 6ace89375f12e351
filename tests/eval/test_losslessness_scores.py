import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule
from entmtp_env.decoding.noise import gumbel_noise
from eval.losslessness_scores import TextScore, TextScorer, departure, repetitions, summarise_losses
from eval.statistics import ENOUGH
from tests.tiny import tiny_backbone, tiny_model

PROMPT, TEXT = [1, 5, 9, 3], [7, 7, 20, 4, 11]


@pytest.fixture(scope="module")
def logits():
    """Of every token behind the prompt, by transformers."""
    with torch.inference_mode():
        return tiny_model()(torch.tensor([PROMPT + TEXT])).logits[0, len(PROMPT) - 1 :].double()


def scorer(rule=None):
    return TextScorer(tiny_backbone(), PROMPT, rule or GreedyRule(), 7, 20)


@pytest.mark.parametrize("rows", [2, 256])
def test_nats_are_those_of_transformers(logits, monkeypatch, rows):
    monkeypatch.setattr("eval.losslessness_scores._ROWS", rows)
    own = scorer()
    # A longer text in between leaves no trace.
    for length in (3, 5, 1, 4):
        log_p = logits[:length].log_softmax(-1)
        expected = -sum(log_p[i, token] for i, token in enumerate(TEXT[:length]))
        assert own.nats(TEXT[:length]) == pytest.approx(float(expected), abs=1e-4)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_margin_is_between_the_two_best(logits, length):
    second, best = logits[length].sort().values[-2:].tolist()
    assert scorer().margin(TEXT[:length]) == pytest.approx(best - second, abs=1e-5)
    noise = gumbel_noise(7, len(PROMPT) + length, logits.shape[1])
    second, best = np.sort(logits[length].numpy() / 0.5 + noise)[-2:].tolist()
    assert scorer(SampleRule(0.5)).margin(TEXT[:length]) == pytest.approx(best - second, abs=1e-5)


@given(st.lists(st.integers(0, 1), max_size=5), st.lists(st.integers(0, 1), max_size=5))
def test_up_to_its_departure_a_text_is_the_other_one(one, other):
    at = departure(one, other)
    if at is None:
        assert one == other
    else:
        assert one[:at] == other[:at]
        assert one[at : at + 1] != other[at : at + 1]


def score(nats, tokens=1, margin=None, repeated=0, runs=0):
    return TextScore(nats, tokens, margin, repeated, runs)


def test_a_row_is_compared_text_by_text():
    plain = [score(nats) for nats in (1.0, 2.0, 3.0)]
    scores = {
        "autoregressive": plain,
        "other": [score(1.5, margin=0.25), score(2.0), score(4.0, margin=0.5)],
        "shifted": [score(nats, margin=1) for nats in (1.1, 2.1, 3.1)],
    }
    reference, other, shifted = summarise_losses(scores, 500, 0)
    assert (reference.nats, reference.gap.value, reference.same, reference.margins) == (2.0, 0.0, 3, ())
    assert (other.texts, other.nats, other.same, other.margins) == (3, 2.5, 1, (0.25, 0.5))
    assert other.gap.value == pytest.approx(0.5)
    assert 0 <= other.gap.low < 0.5 < other.gap.high <= 1
    # As wide as the difference of each text, not as the texts.
    assert (shifted.gap.low, shifted.gap.high) == pytest.approx((0.1, 0.1))


def test_the_level_is_the_logarithm_of_the_perplexity():
    plain = [score(9.0, tokens=3), score(128.0, tokens=256)]
    other = [score(3.0, tokens=3), score(250.0, tokens=250)]
    reference, row = summarise_losses({"autoregressive": plain, "other": other}, 500, 0)
    perplexity = np.exp(np.mean([3.0] * 3 + [0.5] * 256))
    assert np.exp(reference.nats) == pytest.approx(perplexity, rel=0.02)
    assert reference.nats == pytest.approx(137 / 259)
    assert row.gap.value == pytest.approx(1 - 137 / 259)


def test_repetition_is_a_share_of_all_runs():
    plain = [score(1, repeated=1, runs=2), score(1, repeated=0, runs=98), score(1)]
    other = [score(1, repeated=2, runs=2), score(1, repeated=48, runs=98), score(1)]
    reference, row = summarise_losses({"autoregressive": plain, "other": other}, 500, 0)
    assert (reference.repeated, row.repeated) == (0.01, 0.5)
    assert row.repeated_gap.value == pytest.approx(0.49)
    assert reference.repeated_gap.value == 0
    none = summarise_losses({"autoregressive": [score(1), score(1)]}, 500, 0)[0]
    assert (none.repeated, none.repeated_gap.value) == (0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", (0, 0)),
        ("a b c", (0, 0)),
        ("a b c d", (0, 1)),
        ("a  b\nc d a b c d", (1, 5)),
        # Runs overlap: all but the first of eight.
        (" ".join("a" * 11), (7, 8)),
    ],
)
def test_runs_of_four_words_that_came_before(text, expected):
    assert repetitions(text) == expected


@given(st.lists(st.sampled_from("ab"), max_size=30))
def test_a_run_is_repeated_when_it_is_in_what_precedes_its_last_word(words):
    runs = [words[i : i + 4] for i in range(len(words) - 3)]
    assert repetitions(" ".join(words)) == (sum(run in runs[:i] for i, run in enumerate(runs)), len(runs))


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((0.0, 0.0), "holds"),
        ((0.01, -0.015), "holds"),
        ((0.01, 0.03), "undecided"),
        ((0.03, 0.05), "does not hold"),
        ((-0.03, -0.05), "does not hold"),
        ((-0.05, 0.05), "undecided"),
    ],
)
def test_the_verdict_needs_the_whole_interval_and_texts_enough(differences, verdict):
    def other(times):
        plain = [score(0.0)] * (times * len(differences))
        scores = [score(nats, margin=0.1) for nats in differences] * times
        return summarise_losses({"autoregressive": plain, "other": scores}, 500, 0)[1]

    assert other(ENOUGH // 2).verdict == verdict
    assert other(ENOUGH // 2 - 1).verdict == "undecided"


def test_of_texts_that_are_the_same_few_are_enough():
    scores = {policy: [score(1.0), score(2.0)] for policy in ("autoregressive", "other")}
    assert summarise_losses(scores, 500, 0)[1].verdict == "holds"
