"""The training of a scheduler with Stable-Baselines3: trials on held-out texts, the best policy, resuming."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress
from rich.table import Table
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from entmtp_env.files import atomic_path
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.sb3 import ReplaySB3VecEnv, StagedReplaySB3VecEnv
from policies.learned import Learned
from policies.staged_learned import StagedLearned
from train.rl_curves import Curves
from train.rl_env import DecodingLog
from train.rl_export import to_learned
from train.rl_replays import Replays, StagedReplays
from train.rl_table import training_table
from train.trainer import load_state

if TYPE_CHECKING:
    from train.rl import SchedulerTraining

_MODELS = {"ppo": PPO, "dqn": DQN, "a2c": A2C}
_LOGS = 5
"""Points of the training's curves for each trial."""
_EPSILON = 1e-4
"""Added to the variance of a feature; all are about 1 wide, so that one that hardly varies stays small."""


class SchedulerTrainer:
    """Trains a scheduler, and keeps the policy that is best on held-out texts.

    Args:
        config: Settings.
        train: Recordings to train on.
        held_out: Recordings of other texts.

    Raises:
        FileNotFoundError: When a file is missing.
        ValueError: When a setting is unknown, or recordings, costs and bank do not fit together.
    """

    def __init__(self, config: SchedulerTraining, train: Sequence[str], held_out: Sequence[str]) -> None:
        self.config = config
        replays = StagedReplays if config.drafts else Replays
        self.train, self.held_out = (replays(names, config.environment) for names in (train, held_out))
        self.static = self.train.best_static
        reward = config.reward
        if reward == "throughput_advantage":
            # A text's tokens are given, so that the sum of tokens - reference * seconds over a text is best
            # where its seconds are least, whatever the reference; a rate that can nearly be reached makes it
            # a gain over the average of what comes after, for which a short horizon (gamma) is enough.
            reward += f":reference={self.train.run(self.static)['tokens_per_second']!r}"
        kind = StagedReplaySB3VecEnv if config.drafts else ReplaySB3VecEnv
        envs = kind(config.envs, recording=train, reward=reward, **config.environment)
        self.log = DecodingLog(envs, self.train.least_seconds)
        settings = asdict(config.settings)
        self.normalization = VecNormalize(self.log, gamma=settings["gamma"], epsilon=_EPSILON)
        rate = settings.pop("learning_rate")
        self.model = (MaskablePPO if config.drafts else _MODELS[config.algo])(
            "MlpPolicy",
            self.normalization,
            # The last rollout may end past the last step.
            learning_rate=lambda remaining: rate * max(remaining, 0.0),
            policy_kwargs={"net_arch": list(config.hidden)},
            seed=config.seed,
            device="cpu",
            **settings,
        )
        self.model.set_logger(Logger(None, []))
        costs = load_costs(config.costs)
        self.record = {
            **describe_run(),
            "seed": config.seed,
            "settings": config.record,
            "reward": reward,
            "train": self.train.record,
            "held_out": self.held_out.record,
            "costs": {
                "name": costs.name,
                "fingerprint": getattr(costs, "fingerprint", None),
                **costs.manifest,
            },
            "environment": envs.manifest,
        }
        self.curve: list[dict[str, float]] = []
        self.seconds, self._mark, self._logged = 0.0, 0.0, 0

    @property
    def fingerprint(self) -> str:
        """Hash of all that the training depends on, so that no other one is resumed by mistake."""
        # Places may change; what the rest stands for follows.
        left_out = {"recordings", "out", "held_out", "costs", "bank", "drafts", "stages", "overwrite"}
        settings = {name: value for name, value in self.config.record.items() if name not in left_out}
        texts = [self.record[part]["fingerprint"] for part in ("train", "held_out")]
        described = [settings, texts, self.record["costs"], self.record["environment"]]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def run(self) -> Table:
        """Train to the end, from the last saved state when there is one.

        Returns:
            What the best static tree, the best policy and the best possible schedule reach on held-out texts.

        Raises:
            ValueError: When the saved state is damaged or of another training.
        """
        if state := load_state(self.config.state_path):
            self._restore(state)
        begun, total = self.model.num_timesteps, self.config.steps
        with progress_bar() as bar, contextlib.closing(Curves(self.config.folder, begun)) as curves:
            task = bar.add_task(f"training {self.config.algo}", total=total, completed=begun)
            if begun:
                _print(bar, f"going on at step {begun:,} from {self.config.state_path}")
            callback = _Hooks(
                lambda: self._between_rollouts(bar, curves, self.config.evaluate_every),
                lambda: bar.advance(task, self.config.envs),
            )
            self._mark = time.monotonic()
            self.model.learn(total - begun, callback, log_interval=None, reset_num_timesteps=False)
            self._between_rollouts(bar, curves, every=1)
        return self._finish()

    def _between_rollouts(self, bar: Progress, curves: Curves, every: int) -> None:
        """What is due, after so many steps, when the model has learned from all that it has collected."""
        step = self.model.num_timesteps
        if step - self._logged >= every / _LOGS:
            self._logged = step
            curves.training(step, self.log.take_figures(), self.model.logger)
        if not self.curve or step - self.curve[-1]["step"] >= every:
            self._try_out(bar, curves)

    def _try_out(self, bar: Progress, curves: Curves) -> None:
        """Try the policy on the held-out texts, keep it if it is the best so far, and save the state."""
        self.seconds += time.monotonic() - self._mark
        policy = to_learned(self.model, self.normalization, self.held_out.envs)
        figures = self.held_out.run(policy)
        best = all(figures["tokens_per_second"] > earlier["tokens_per_second"] for earlier in self.curve)
        step = self.model.num_timesteps
        self.curve.append({"step": step, "seconds": round(self.seconds, 1), **figures})
        if best or not self.config.out.exists():
            policy.save(self.config.out, {**self.record, "curve": self.curve})
        state = {
            "fingerprint": self.fingerprint,
            "actions": torch.from_numpy(np.array(self.log.actions, dtype=np.int16)),
            "policy": self.model.policy.state_dict(),
            "optimizer": self.model.policy.optimizer.state_dict(),
            "curve": self.curve,
            "seconds": self.seconds,
        }
        with atomic_path(self.config.state_path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)
        self._reseed()
        curves.held_out(step, figures)
        rate, regret = figures["tokens_per_second"], figures["regret"]
        _print(
            bar, f"step {step:,}: held out {rate:.2f} tok/s, regret {regret:.3f}{' (best)' if best else ''}"
        )
        self._mark = time.monotonic()

    def _reseed(self) -> None:
        """Seed anew after each trial: the state of the generators need not be saved."""
        words = np.random.SeedSequence((self.config.seed, len(self.curve))).generate_state(1)
        self.model.set_random_seed(int(words[0]))

    def _restore(self, state: dict[str, Any]) -> None:
        if state["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"cannot go on from {self.config.state_path}: it is of another training (settings, texts, "
                "costs or bank); delete it to start anew, or give another out"
            )
        self._retrace(state["actions"].numpy())
        self.model.policy.load_state_dict(state["policy"])
        self.model.policy.optimizer.load_state_dict(state["optimizer"])
        self.curve, self.seconds = state["curve"], state["seconds"]
        self._reseed()

    def _retrace(self, past: npt.NDArray[np.int16]) -> None:
        """Take the same actions again, so that environments, normalisation and replay buffer are the same."""
        model, env = self.model, self.normalization
        model._setup_learn(0)
        for actions in past.astype(np.int64):
            observations, rewards, dones, infos = env.step(actions)
            model.num_timesteps += len(actions)
            model._update_current_progress_remaining(model.num_timesteps, self.config.steps)
            if isinstance(model, OffPolicyAlgorithm):
                model._store_transition(model.replay_buffer, actions, observations, rewards, dones, infos)
                model._on_step()
            else:
                model._last_obs, model._last_episode_starts = observations, dones
        self.log.take_figures()
        self._logged = model.num_timesteps

    def _finish(self) -> Table:
        """Write the file again, with the whole curve and the figures of the table."""
        kind = StagedLearned if self.config.drafts else Learned
        best = kind.load(self.config.out, self.held_out.env)
        static = type(self.static)(self.held_out.env, **self.static.options)
        policies = {static.spec: static, best.name: best, "oracle": self.held_out.plan}
        rows = {name: self.held_out.run(policy) for name, policy in policies.items()}
        best.save(self.config.out, {**self.record, "curve": self.curve, "results": rows})
        self.config.state_path.unlink()
        approximate = " (approximate replay)" * bool(self.record["environment"]["approximate"])
        return training_table(rows, "held-out texts" + approximate)


class _Hooks(BaseCallback):
    """Calls ``between_rollouts`` before each rollout, and ``stepped`` after each step of the environments."""

    def __init__(self, between_rollouts: Callable[[], None], stepped: Callable[[], None]) -> None:
        super().__init__()
        self._between_rollouts, self._stepped = between_rollouts, stepped

    def _on_rollout_start(self) -> None:
        self._between_rollouts()

    def _on_step(self) -> bool:
        self._stepped()
        return True


def _print(bar: Progress, text: str) -> None:
    bar.console.print(text, soft_wrap=True, highlight=False, markup=False)
