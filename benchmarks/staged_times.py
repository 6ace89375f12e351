"""What a staged decision costs: seeing the draft, deciding, and building the tree to verify."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.interleaved import Finding, Samples, Turn
from entmtp_env.decoding.stages import DEEPER
from entmtp_env.staged_env import StagedEnv
from entmtp_env.staged_features import observe_draft
from policies.staged import StagedThreshold

KINDS = ("observation", "decision", "tree")
"""Features of the draft; the policy's choice; the tree of the best nodes."""
_NODES = 32


def staged_turn(env: StagedEnv, repeats: int) -> Turn:
    """Seconds behind the deepest draft of a step, in the loop of live texts.

    Args:
        env: A staged environment.
        repeats: Steps of a turn; one that is not timed comes before.
    """
    policy, table = StagedThreshold(env), env.decoder.table
    budget = max(k for k, nodes in enumerate(env.stages.budgets) if nodes <= _NODES)
    nodes = env.stages.budgets[budget]

    def run() -> dict[str, float]:
        rows: list[np.ndarray] = []
        ended = True
        while len(rows) <= repeats:
            if ended:
                env.reset()
            for _ in range(env.stages.depth):
                env.step(DEEPER)
            clock = [time.perf_counter()]
            observe_draft(env._tracker, table)
            observation = env._tracker.observe()
            clock.append(time.perf_counter())
            policy.predict(observation, None, np.array([True]))
            clock.append(time.perf_counter())
            table.best(nodes)
            clock.append(time.perf_counter())
            rows.append(np.diff(clock))
            *_, terminated, truncated, _ = env.step(1 + budget)
            ended = terminated or truncated
        seconds = np.median(rows[1:], axis=0).tolist()
        return {f"staged {kind}": own for kind, own in zip(KINDS, seconds, strict=True)}

    return run


def staged_findings(samples: Samples) -> list[Finding]:
    """Microseconds of what :func:`staged_turn` measured."""
    micros = {kind: 1e6 * samples[f"staged {kind}"] for kind in KINDS}
    both = micros["observation"] + micros["decision"]
    return [
        Finding.of("staged", "features of the draft", micros["observation"], "µs"),
        Finding.of("staged", "staged-threshold", micros["decision"], "µs"),
        Finding.of("staged", "a decision", both, "µs", "≤ 60"),
        Finding.of("staged", f"tree of {_NODES} nodes, built", micros["tree"], "µs", "≤ 150"),
    ]
