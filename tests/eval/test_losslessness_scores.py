import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding import GreedyRule, SampleRule
from entmtp_env.decoding.noise import gumbel_noise
from eval.losslessness_scores import TextScorer, departure, summarise_losses
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
        expected = -sum(log_p[i, token] for i, token in enumerate(TEXT[:length])) / length
        assert own.nats(TEXT[:length]) == pytest.approx(float(expected), abs=1e-5)


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


def test_a_row_is_compared_text_by_text():
    nats = {"autoregressive": [1.0, 2.0, 3.0], "other": [1.5, 2.0, 4.0]}
    margins = {"autoregressive": [None] * 3, "other": [0.25, None, 0.5]}
    reference, other = summarise_losses(nats, margins, 500, 0)
    assert (reference.nats, reference.gap.value, reference.same, reference.margins) == (2.0, 0.0, 3, ())
    assert (other.texts, other.nats, other.same, other.margins) == (3, 2.5, 1, (0.25, 0.5))
    assert other.gap.value == pytest.approx(0.5)
    assert 0 <= other.gap.low < 0.5 < other.gap.high <= 1
    # As wide as the difference of each text, not as the texts.
    shifted = summarise_losses(nats | {"other": [1.1, 2.1, 3.1]}, margins, 500, 0)[1]
    assert (shifted.gap.low, shifted.gap.high) == pytest.approx((0.1, 0.1))


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
        count = times * len(differences)
        nats = {"autoregressive": [0.0] * count, "other": [*differences] * times}
        margins = {"autoregressive": [None] * count, "other": [0.1] * count}
        return summarise_losses(nats, margins, 500, 0)[1]

    assert other(ENOUGH // 2).verdict == verdict
    assert other(ENOUGH // 2 - 1).verdict == "undecided"


def test_of_texts_that_are_the_same_few_are_enough():
    nats = {"autoregressive": [1.0, 2.0], "other": [1.0, 2.0]}
    margins = {policy: [None, None] for policy in nats}
    assert summarise_losses(nats, margins, 500, 0)[1].verdict == "holds"
