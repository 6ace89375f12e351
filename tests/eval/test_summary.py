import pytest

from eval.statistics import Ratio
from eval.summary import summarise


@pytest.fixture
def two(episode):
    """Autoregressive decoding, and a policy "p" that is twice as fast without policy time and prefill."""
    plain = [episode(q, *[(0, 1, 0.1)] * 6, prefill=0.6, text=q) for q in ("a", "b")]
    steps = {"a": [(1, 3, 0.1), (2, 3, 0.2)], "b": [(1, 2, 0.1), (1, 2, 0.1), (2, 2, 0.1)]}
    fast = [
        episode(q, *steps[q], policy_seconds=0.02, prefill=0.6, text="a" if q == "a" else "other")
        for q in "ab"
    ]
    return {"autoregressive": plain, "p": fast}


def test_a_summary_in_closed_form(two):
    plain, fast = summarise(two, "p", samples=50)
    assert (fast.policy, fast.prompts, fast.tokens, fast.steps) == ("p", 2, 12, 5)
    assert fast.seconds == pytest.approx(0.6 + 5 * 0.02)
    assert fast.tokens_per_second == pytest.approx(12 / 0.7)
    assert fast.tokens_per_second_with_prefill == pytest.approx(12 / 1.9)
    assert fast.tau == pytest.approx(12 / 5)
    assert fast.rho.value == pytest.approx((12 / 0.7) / (12 / 1.2))
    assert fast.rho_with_prefill.value == pytest.approx((12 / 1.9) / (12 / 2.4))
    assert plain.versus_baseline.value == pytest.approx(0.7 / 1.2)
    assert plain.versus_baseline_with_prefill.value == pytest.approx(1.9 / 2.4)
    # 6 tokens in 0.6 s on both prompts, against 0.34 s and 0.36 s.
    assert plain.interquartile_ratio.value == pytest.approx((0.34 / 0.6 + 0.36 / 0.6) / 2)
    same = Ratio(1, 1, 1)
    assert (plain.rho, fast.versus_baseline, fast.versus_baseline_with_prefill) == (same, same, same)
    assert (plain.improvement, fast.improvement) == (Ratio(0, 0, 0), Ratio(0.5, 0.5, 0.5))
    assert fast.switch_rate == pytest.approx(2 / 3)
    assert fast.policy_microseconds == pytest.approx(20_000)
    assert fast.policy_share == pytest.approx(0.1 / 0.7)
    assert fast.draft_share == pytest.approx(0.25 * 0.6 / 0.7)
    assert fast.verify_share == pytest.approx(0.5 * 0.6 / 0.7)
    assert (plain.same_texts, fast.same_texts) == (2, 1)
    assert fast.trees == {"tree1": 3, "tree2": 2}


def test_texts_of_one_step_never_switch(episode):
    (only,) = summarise({"autoregressive": [episode("a", (0, 1, 0.1))]}, "autoregressive")
    assert only.switch_rate == 0


def test_other_prompts_are_refused(two):
    with pytest.raises(ValueError, match="'p' and 'autoregressive' ran different prompts"):
        summarise(two | {"p": two["p"][::-1]}, "p")
    with pytest.raises(ValueError, match="different prompts"):
        summarise(two | {"p": two["p"][:1]}, "p")


@pytest.mark.parametrize("missing", ["autoregressive", "p"])
def test_what_is_divided_by_must_be_there(two, missing):
    del two[missing]
    with pytest.raises(ValueError, match=f"no episodes of {missing}"):
        summarise(two, "p")
