"""What observing and choosing cost between two decode steps."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.interleaved import Finding, Samples, Turn
from entmtp_env.live import LiveEnv
from policies.threshold import Threshold

KINDS = ("signals", "tracker", "policy")
"""Signals of base and heads; running features and the observation; the policy's choice."""


def feature_turn(env: LiveEnv, repeats: int) -> Turn:
    """Seconds per step of features and policy, in the loop of live texts that a threshold schedules.

    Args:
        env: A live environment without a probe.
        repeats: Steps of a turn; one that is not timed comes before.
    """
    policy = Threshold(env, score="expected_accept")

    def run() -> dict[str, float]:
        rows: list[np.ndarray] = []
        finish_reason = "not started"
        while len(rows) <= repeats:
            if finish_reason:
                observation, _ = env.reset()
                action, state = policy.predict(observation)
            step = env.decoder.step(env.bank[int(action)])
            clock = [time.perf_counter()]
            signals = env._signals(int(action), step)
            clock.append(time.perf_counter())
            env._tracker.step(signals)
            observation = env._tracker.observe()
            clock.append(time.perf_counter())
            action, state = policy.predict(observation, state, np.array([False]))
            clock.append(time.perf_counter())
            rows.append(np.diff(clock))
            finish_reason = step.finish_reason
        seconds = np.median(rows[1:], axis=0).tolist()
        return {f"feature {kind}": own for kind, own in zip(KINDS, seconds, strict=True)}

    return run


def feature_findings(samples: Samples) -> list[Finding]:
    """Microseconds of what :func:`feature_turn` measured."""
    micros = {kind: 1e6 * samples[f"feature {kind}"] for kind in KINDS}
    return [
        Finding.of("features", "signals of base and heads", micros["signals"], "µs"),
        Finding.of("features", "running features and observation", micros["tracker"], "µs"),
        Finding.of("features", "threshold policy", micros["policy"], "µs"),
        Finding.of("features", "features and policy", sum(micros.values()), "µs", "≤ 100"),
    ]
