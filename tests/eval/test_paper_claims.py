import pytest

from eval.paper_claims import check_claims


@pytest.fixture
def method(episode):
    """Builds episodes of one step each: seconds per prompt of ten tokens, prefill and policy added."""

    def build(*seconds):
        return [
            episode(f"q{i}", (1, 10, s - 0.75), policy_seconds=0.25, prefill=0.5)
            for i, s in enumerate(seconds)
        ]

    return build


def test_a_ratio_has_prefill_and_policy_in_it(method):
    both = {"Hydra": method(*[1, 2] * 5), "Medusa": method(*[2, 4] * 5)}
    (claim,) = check_claims("gsm8k", both, 100, 0)
    assert claim.ratio.value == pytest.approx(2)
    assert (claim.faster, claim.slower, claim.verdict) == ("Hydra", "Medusa", "holds")
    assert claim.reported == pytest.approx(102.4 / 87.4)


@pytest.mark.parametrize(
    ("star", "hydra", "verdict"),
    [
        ((1, 1, 1), (2, 2, 3), "holds"),
        ((2, 2, 3), (1, 1, 1), "does not hold"),
        ((1, 2, 1), (2, 1, 1), "undecided"),
    ],
)
def test_the_verdict_is_the_intervals(method, star, hydra, verdict):
    def claim(times):
        return check_claims(
            "litbench", {"EntMTP*": method(*star * times), "Hydra": method(*hydra * times)}, 500, 0
        )[0]

    assert claim(4).verdict == verdict
    assert claim(4).reported is None
    # Of so few prompts an interval is too narrow to decide by.
    assert claim(3).verdict == "undecided"
    assert check_claims("x", {"EntMTP*": method(1), "Hydra": method(2)}, 9, 0)[0].verdict == "undecided"


def test_a_claim_needs_both_methods(method):
    assert check_claims("gsm8k", {"Hydra": method(1), "EntMTP^τ": method(1)}, 10, 0) == []
