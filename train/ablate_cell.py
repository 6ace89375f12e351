"""One value of an ablated choice: several seeds are trained with it, and measured on held-out texts."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import load_costs
from entmtp_env.rewards import make_reward
from policies.base import Predictor
from policies.learned import Learned
from policies.lockstep import replay
from policies.static import Static
from train.interquartile import over_seeds
from train.journal import Journal
from train.rl import SchedulerTraining, train_scheduler
from train.rl_replays import Replays
from train.supervision import Method, Supervision, make_policy
from train.value import ValueTraining

TrainBy = Literal["rl", "value", "imitation", "improvement"]

Floats = npt.NDArray[np.float64]

_LEFT_OUT = {"recordings", "out", "held_out", "costs", "bank", "seed", "overwrite"}
"""Settings that name places, whose contents are noted instead; the seed, which each row has; no results."""


class Cell:
    """The seeds of one value, their results kept in ``<out>.jsonl`` as they come.

    Args:
        training: The training of a seed; its ``out`` is ``<folder>/<cell>.npz``.
        train_by: What trains.
        own: Recordings to train on.
        others: Recordings to measure on.

    Attributes:
        own: The texts to train on.
        held_out: The texts to measure on.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, recordings, costs and bank do not fit together, or what is done
            was done with other settings.
    """

    def __init__(
        self, training: SchedulerTraining, train_by: TrainBy, own: Sequence[str], others: Sequence[str]
    ) -> None:
        if training.reward != "throughput_advantage":
            make_reward(training.reward)
        self._training, self._train_by = training, train_by
        self.own, self.held_out = (Replays(names, training.environment) for names in (own, others))
        costs = load_costs(training.costs)
        settings = {name: value for name, value in training.record.items() if name not in _LEFT_OUT}
        self._journal = Journal(
            training.out.with_suffix(".jsonl"),
            {
                **settings,
                "train_by": train_by,
                "train": self.own.record["fingerprint"],
                "held_out": self.held_out.record["fingerprint"],
                "costs": {
                    "name": costs.name,
                    "fingerprint": getattr(costs, "fingerprint", None),
                    **costs.manifest,
                },
                "environment": self.held_out.envs.manifest,
            },
        )

    def done(self, seed: int) -> bool:
        """Whether a seed was trained and measured."""
        return any(row["seed"] == seed for row in self._journal.rows)

    def run(self, seed: int, fit: Sequence[str], choose: Sequence[str]) -> None:
        """Train and measure a seed.

        Args:
            seed: The seed.
            fit: Part of the texts to train on, for rl to train on.
            choose: The rest of them, for rl to choose the policy by; supervision parts them itself.
        """
        out = self._training.out.with_name(f"{self._training.out.stem}-{seed}.npz")
        if self._train_by != "rl":
            policy: Predictor = self._supervise(self._train_by, out, seed)
        else:
            training = dataclasses.replace(
                self._training,
                out=out,
                seed=seed,
                recordings=tuple(fit),
                held_out=tuple(choose),
                # Stopped between the end of a training and its row, the policy is there without the row.
                overwrite=True,
            )
            # Its table is of the texts that choose.
            with contextlib.redirect_stdout(io.StringIO()):
                train_scheduler(training)
            policy = Learned.load(out, self.held_out.env)
        tokens, seconds = self._measure(policy)
        self._journal.add({"seed": seed, "tokens": tokens.tolist(), "seconds": seconds.tolist()})

    def static_rates(self, tree: str) -> Floats:
        """Tokens per second of each held-out text with one tree, ``(texts,)``."""
        tokens, seconds = self._measure(Static(self.held_out.env, tree))
        return tokens / seconds

    def row(self, seeds: Sequence[int], reference: Floats) -> dict[str, Any]:
        """What seeds that are done reach, as JSON values.

        Args:
            seeds: The seeds.
            reference: Tokens per second of each held-out text to divide by, ``(texts,)``.

        Returns:
            ``iqm``, its 95 % interval ``low`` and ``high`` (``None`` with one seed); ``tokens_per_second``,
            Σ tokens / Σ seconds, and by seed ``seeds``; ``oracle``, that of the best possible schedules.
        """
        by_seed = {row["seed"]: row for row in self._journal.rows}
        tokens, seconds = (
            np.array([by_seed[seed][name] for seed in seeds]) for name in ("tokens", "seconds")
        )
        interval = over_seeds(tokens / seconds / reference)
        rates = tokens.sum(axis=1) / seconds.sum(axis=1)
        return {
            "iqm": interval.value,
            "low": interval.low,
            "high": interval.high,
            "tokens_per_second": float(tokens.sum() / seconds.sum()),
            "seeds": dict(zip(map(str, seeds), rates.tolist(), strict=True)),
            "oracle": float(tokens[0].sum() / self.held_out.oracle.seconds.sum()),
        }

    def _measure(self, policy: Predictor) -> tuple[Floats, Floats]:
        """Tokens and seconds of each held-out text, without the policy's own time, ``(texts,)`` each."""
        envs = self.held_out.envs
        episodes = replay(envs, policy, [text.prompt_id for text in envs.prompts]).episodes
        return np.array([float(e.tokens) for e in episodes]), np.array([e.seconds for e in episodes])

    def _supervise(self, method: Method, out: Path, seed: int) -> Predictor:
        config = ValueTraining(out=out, methods=(method,), seed=seed, **self._training.environment)
        with progress_bar() as bar:
            network = Supervision(config, self.own.envs, bar).teach(method)
        policy = make_policy(method, network, self.held_out.envs)
        policy.save(out, describe_run() | {"method": method, "seed": seed})
        return policy
