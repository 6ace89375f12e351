"""``python -m train staged``: a staged scheduler by supervision on what every decision would have cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from entmtp_env.files import refuse_existing
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.staged_oracle import solve_staged
from entmtp_env.replay.staged_vector_env import StagedReplayVectorEnv
from policies.base import SchedulingEnv
from policies.policy_file import PolicyFile
from policies.staged import StagedThreshold
from policies.staged_learned import StagedLearned
from train.rl_texts import CALIBRATION, held_out_of, split_texts
from train.staged_lessons import StagedLessons, fixed, make_staged
from train.value_table import LEGEND, Judge, value_table


@dataclass(frozen=True)
class StagedTraining:
    """Train a small network that decides after every drafted depth, by supervision on recorded texts.

    A recording tells what every decision of a step would have cost, so that what a step is expected to cost,
    its seconds less the worth of its tokens, is minimised with all its decisions enumerated. It is taught
    where its own decisions lead (as in DAgger, arXiv 1011.0686), for the costs that it is trained with: the
    policy staged-learned@<out>. Prints what it reaches on held-out texts.

    Example: python -m train staged --drafts own.npz others.npz --stages stages.json --out runs/staged.npz

    Attributes:
        out: Policy file to write (.npz).
        drafts: Staged drafts of all the recordings, written by "train stages".
        stages: default, or a JSON file.
        recordings: Texts to train on, pooled: chat, math, ... or .npz files, or halves of them, as in
            chat:calibration.
        held_out: Recordings of other texts, each with its own column. By default the other halves of the
            recordings when these are the default ones, else every fourth text of the recordings.
        thresholds: A calibrated staged-threshold to compare with: its policy file.
        costs: Seconds of a step: auto, a cost table, or analytic:base=B,node=N,depth=D.
        features: Groups of features, comma-separated, or all.
        max_new_tokens: Token cap of each text; by default that of the recordings.
        capacity: KV rows; prompt, text and the largest budget must fit.
        rounds: How often training goes on with the visits of its own decisions.
        epochs: Passes over the visits in each round; fewer when texts that decide gain no more.
        seed: Seed of everything random.
        overwrite: Replace the policy that is there.
    """

    out: Path
    drafts: tuple[str, ...]
    stages: str = "default"
    recordings: tuple[str, ...] = CALIBRATION
    held_out: tuple[str, ...] = ()
    thresholds: Path | None = None
    costs: str = "auto"
    features: str = "all"
    max_new_tokens: int | None = None
    capacity: int = 2048
    rounds: int = 2
    epochs: int = 20
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that train nothing."""
        if not (self.recordings and self.drafts):
            raise ValueError("recordings and drafts must each name at least one")
        if self.rounds < 0 or self.epochs < 1 or self.seed < 0:
            raise ValueError(
                f"rounds={self.rounds} and seed={self.seed} must be >= 0, epochs={self.epochs} >= 1"
            )

    def environments(self, *recordings: str) -> StagedReplayVectorEnv:
        """One for each text of the recordings.

        Raises:
            ValueError: When they do not fit together, or the KV cache may end a text.
        """
        names = ("drafts", "stages", "costs", "features", "max_new_tokens", "capacity")
        envs = StagedReplayVectorEnv(
            len(load_recording(recordings).texts),
            recording=recordings,
            **{name: getattr(self, name) for name in names},
        )
        envs.tables.check_lengths()
        return envs


def train_staged(config: StagedTraining) -> StagedLearned:
    """Train, print what the policy reaches on held-out texts, and write it.

    Raises:
        FileExistsError: When a policy is there already.
        FileNotFoundError: When a recording, drafts, stages, the costs or the thresholds are not there.
        ValueError: When a setting is unknown, recordings, drafts, stages and costs do not fit together, a
            held-out text is trained on or of another model, the KV cache may end a text, or there are fewer
            than two.
    """
    refuse_existing(config.out, overwrite=config.overwrite)
    folder = config.out.with_name(f"{config.out.name}.training")
    chosen = held_out_of(config.recordings, config.held_out)
    own, others = split_texts(config.recordings, chosen, folder)
    envs, held_out = config.environments(*own), {name: config.environments(name) for name in others}
    options = None if config.thresholds is None else _thresholds(config.thresholds, envs)
    with progress_bar() as bar:
        lessons = StagedLessons(envs, config.seed, bar)
        network = lessons.teach(config.rounds, config.epochs)
    best = lessons.oracle.best_static
    oracles = [solve_staged(other) for other in held_out.values()]
    bounds = [(one.static_seconds(*best).sum(), one.seconds.sum()) for one in oracles]
    judge = Judge(held_out, fixed(envs, *best).spec, bounds)
    if options is not None:
        judge.add(StagedThreshold.name, partial(StagedThreshold, **options))
    judge.add(StagedLearned.name, partial(make_staged, network))
    costs = load_costs(config.costs)
    thresholds = config.thresholds and str(config.thresholds)
    in_force = {"out": str(config.out), "thresholds": thresholds, "held_out": others}
    policy = make_staged(network, envs)
    policy.save(
        config.out,
        describe_run()
        | {
            "settings": asdict(config) | in_force,
            "environment": envs.manifest,
            "texts": envs.num_envs,
            "costs": {"name": costs.name, **costs.manifest},
            "held_out": judge.record(),
        },
    )
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(value_table(judge, costs.name))
    console.print(LEGEND, markup=False)
    console.print(f"wrote {config.out}", soft_wrap=True, markup=False)
    return policy


def _thresholds(path: Path, envs: StagedReplayVectorEnv) -> Mapping[str, Any]:
    """Options of a calibrated staged-threshold."""
    file = PolicyFile.load(path)
    file.check(StagedThreshold.name, cast(SchedulingEnv, envs))
    return file.options
