"""What a calibrated policy's file says about how it was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from entmtp_env.provenance import describe_run
from train.trial import Bench, Trial

_LISTED = 20


def calibration_record(bench: Bench, best_static: Trial, rivals: Sequence[Trial]) -> dict[str, Any]:
    """The ``calibration`` entry of a policy file.

    Args:
        bench: Where they ran.
        best_static: The best policy that always does the same.
        rivals: The trials of the policy, the best first; all rates are those of one run.
    """
    return {
        **bench.record,
        **describe_run(),
        "tokens_per_second": rivals[0].rate,
        "best_static": {"spec": best_static.policy.spec, "tokens_per_second": best_static.rate},
        "tried": len(rivals),
        "candidates": [
            {"spec": trial.policy.spec, "tokens_per_second": trial.rate, "tau": trial.tau}
            for trial in rivals[:_LISTED]
        ],
    }
