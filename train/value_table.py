"""What trained schedulers reach on held-out texts, beside the best single tree and the best schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.markup import escape
from rich.table import Table

from entmtp_env.replay.lockstep import LockstepReplay
from policies.base import Predictor
from policies.lockstep import replay

LEGEND = (
    "x static: throughput over that of the choice that is fastest throughout the training texts; regret: "
    "time over that of the best possible schedules; gap: share of the time between these two that is saved"
)
"""What the columns mean."""

ORACLE = "oracle"

Floats = npt.NDArray[np.float64]


class Judge:
    """Times of policies on recordings.

    Args:
        recordings: By name: an environment for each text.
        static: The policy that always does the same, to compare with.
        bounds: Its seconds on each recording, and those of the best possible schedules.

    Attributes:
        names: Names of the recordings.
        tokens: Tokens of each recording, ``(recordings,)``.
        seconds: By policy, first the static one and the oracle: seconds of each recording, ``(recordings,)``.
    """

    def __init__(
        self,
        recordings: Mapping[str, LockstepReplay],
        static: str,
        bounds: Sequence[tuple[float, float]],
    ) -> None:
        self._envs, self.names, self.static = list(recordings.values()), list(recordings), static
        tables = [envs.tables for envs in self._envs]
        self.tokens = np.array([(own.ends - own.starts).sum() for own in tables], dtype=np.float64)
        statics, least = np.array(bounds, dtype=np.float64).T
        self.seconds: dict[str, Floats] = {static: statics, ORACLE: least}

    def add(self, name: str, make: Callable[[Any], Predictor]) -> None:
        """Run a policy, which ``make`` builds for each recording, on every text."""
        self.seconds[name] = np.array([_seconds(envs, make(envs)) for envs in self._envs])

    def record(self) -> list[dict[str, Any]]:
        """A row per policy, the best last, as JSON values."""
        static, least = (self.seconds[name].sum() for name in (self.static, ORACLE))
        return [
            {
                "policy": name,
                "tokens_per_second": float(self.tokens.sum() / own.sum()),
                "versus_static": float(static / own.sum()),
                "regret": float(own.sum() / least),
                "gap": float((static - own.sum()) / (static - least)) if static > least else None,
                "recordings": dict(zip(self.names, (self.seconds[self.static] / own).tolist(), strict=True)),
            }
            for name, own in sorted(self.seconds.items(), key=lambda item: -item[1].sum())
        ]


def value_table(judge: Judge, costs: str) -> Table:
    """Build the table.

    Args:
        judge: What was measured.
        costs: Name of the costs.
    """
    table = Table(
        title=escape(f"held-out texts, priced by {costs}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("policy", overflow="fold")
    for name in judge.names:
        table.add_column(f"{escape(name)}\nx static", justify="right", overflow="fold")
    for header in ("tok/s", "x static", "regret", "gap"):
        table.add_column(header, justify="right", no_wrap=True)
    for row in judge.record():
        table.add_row(
            escape(row["policy"]),
            *(f"{ratio:.3f}" for ratio in row["recordings"].values()),
            f"{row['tokens_per_second']:.1f}",
            f"{row['versus_static']:.3f}",
            f"{row['regret']:.3f}",
            "" if row["gap"] is None else f"{row['gap']:.0%}",
        )
    return table


def _seconds(envs: LockstepReplay, policy: Predictor) -> float:
    played = replay(envs, policy, [text.prompt_id for text in envs.prompts])
    return sum(episode.seconds for episode in played.episodes)
