"""What the paper reports: EntMTP, arXiv 2606.27550, main table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reported:
    """A row of the paper, on Vicuna-7B v1.3 in float16 on one A100, batch size 1.

    Attributes:
        tokens_per_second: With prefill.
        rho: ρ, the speed-up over Vanilla.
        tau: τ, tokens per step.
    """

    tokens_per_second: float
    rho: float
    tau: float


PAPER: dict[str, dict[str, Reported]] = {
    "humaneval": {
        "Vanilla": Reported(38.2, 1.00, 1.00),
        "Medusa": Reported(91.2, 2.38, 2.87),
        "Hydra": Reported(109.0, 2.85, 3.06),
        "EntMTP*": Reported(123.4, 3.21, 3.28),
        "EntMTP^τ": Reported(124.7, 3.26, 3.20),
    },
    "gsm8k": {
        "Vanilla": Reported(33.7, 1.00, 1.00),
        "Medusa": Reported(87.4, 2.59, 2.51),
        "Hydra": Reported(102.4, 2.87, 2.86),
        "EntMTP*": Reported(109.7, 3.07, 3.08),
        "EntMTP^τ": Reported(112.0, 3.13, 3.02),
    },
    "sharegpt": {
        "Vanilla": Reported(35.4, 1.00, 1.00),
        "Medusa": Reported(94.6, 2.72, 2.86),
        "Hydra": Reported(109.0, 2.89, 3.06),
        "EntMTP*": Reported(116.9, 3.42, 2.97),
        "EntMTP^τ": Reported(117.5, 3.47, 2.99),
    },
}
"""Rows by task and method, 100 prompts a task; as printed, also where ρ is not the ratio of the speeds."""
