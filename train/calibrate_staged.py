"""Calibration of the staged schedulers on recorded texts: a threshold a depth, and a number of nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from entmtp_env.decoding.stages import Stages, load_stages
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from policies.base import SchedulerPolicy
from policies.policy_file import PolicyFile
from policies.staged import Eagle2, StagedThreshold
from train.calibrate_record import calibration_record
from train.calibrate_replay import ReplayBench
from train.calibrate_table import calibration_table
from train.hill_climb import climb
from train.trial import Trial

if TYPE_CHECKING:
    from train.calibrate import Calibrate

STAGED = (StagedThreshold.name, Eagle2.name)
"""The policies that are calibrated here."""

_ALWAYS, _NEVER = 0.0, 2.0
"""Thresholds on a path value, which is 0 to 1."""
_SHOWN = 8

Grid = Sequence[Sequence[float]]


def calibrate_staged(config: Calibrate) -> None:
    """Search by throughput on the recordings, and write ``<out>/<policy>.json`` for each policy asked for.

    First every depth with every number of nodes runs throughout; the best of them is what the others are
    compared with. Thresholds start at the best depth, or at those that the policy has by default, and one
    after the other goes to the best quantile of its score until none gains.

    Raises:
        FileNotFoundError: When a recording, drafts, stages or costs are not there.
        ValueError: When recordings, drafts, stages and costs do not fit together.
    """
    stages = load_stages(config.stages)
    bench = ReplayBench(
        config.recordings,
        config.costs,
        StagedReplayVectorEnv,
        drafts=config.drafts,
        stages=config.stages,
        capacity=config.capacity,
        max_new_tokens=config.max_new_tokens,
    )
    env, depth = bench.env, stages.depth
    fixed = bench.run(
        [StagedThreshold(env, _until(depth, d), n) for d, n in fixed_choices(stages)], "fixed stages"
    )
    fixed.sort(key=lambda trial: -trial.rate)
    contest: list[Trial] = []
    if Eagle2.name in config.policies:
        contest += bench.run([Eagle2(env, nodes) for nodes in stages.budgets], "eagle2")
    if StagedThreshold.name in config.policies:
        contest += _thresholds(bench, depth, config.shares)
    winners = []
    for name in config.policies:
        rivals = sorted((trial for trial in contest if trial.policy.name == name), key=lambda t: -t.rate)
        winners.append(rivals[0])
        path = config.path(name)
        PolicyFile.of(rivals[0].policy, calibration_record(bench, fixed[0], rivals)).save(path)
        print(f"wrote {path}", file=sys.stderr)
    table = calibration_table(
        fixed[:_SHOWN], [fixed[0], *contest], winners, fixed[0].policy.spec, "calibration"
    )
    Console().print(table)


def fixed_choices(stages: Stages) -> list[tuple[int, int]]:
    """Depths and nodes of all that can be drafted and verified throughout; no depth without need."""
    drafted = [start - 1 for start in stages.shape.starts[1:]]
    return [
        (depth, budget)
        for depth, most in enumerate(drafted)
        for budget in stages.budgets
        if budget <= most and (budget > 0 or depth == 0)
    ]


def _until(depth: int, drafted: int) -> list[float]:
    """Thresholds that draft so many depths throughout."""
    return [_ALWAYS] * drafted + [_NEVER] * (depth - drafted)


def _thresholds(bench: ReplayBench, depth: int, shares: Sequence[float]) -> list[Trial]:
    """All trials of the search."""
    env = bench.env
    starts: list[SchedulerPolicy] = [StagedThreshold(env)]
    starts += [StagedThreshold(env, _until(depth, drafted)) for drafted in range(1, depth + 1)]
    # The last of them drafts all depths, so that every score is seen at every step.
    scores = ("base_top1", *(f"depth_{d}_value_1" for d in range(1, depth)))
    trials = bench.run(starts, "thresholds", ("stage", *scores))
    seen = trials[-1].scores
    stage = np.rint(seen["stage"] * depth)
    quantiles = [np.quantile(seen[score][stage == d], shares).round(4) for d, score in enumerate(scores)]
    grid = [[_ALWAYS, *own.tolist(), _NEVER] for own in quantiles]
    known = {trial.policy.spec: trial for trial in trials}
    best = max(trials, key=lambda trial: trial.rate)

    def around(policy: SchedulerPolicy) -> list[SchedulerPolicy]:
        return [StagedThreshold(env, own) for own in _moves(policy.options["thresholds"], grid)]

    climb(best, around, partial(bench.run, task="thresholds"), known)
    return list(known.values())


def _moves(thresholds: tuple[float, ...], grid: Grid) -> Iterator[list[float]]:
    """One threshold another; none of those behind a depth that is never drafted."""
    for d, values in enumerate(grid):
        if _NEVER in thresholds[:d]:
            return
        for value in values:
            yield [*thresholds[:d], value, *thresholds[d + 1 :]]
