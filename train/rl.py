"""Train a scheduler by reinforcement learning, on recorded texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.files import refuse_existing
from train.rl_config import A2CSettings, DQNSettings, PPOSettings
from train.rl_texts import split_texts

_EXTRA = ("sb3_contrib", "stable_baselines3", "tensorboard")
_ALGORITHMS = ("ppo", "dqn", "a2c")
_AT_LEAST_ONE = ("steps", "envs", "evaluate_every")

Settings = PPOSettings | DQNSettings | A2CSettings


@dataclass(frozen=True)
class SchedulerTraining:
    """Train a scheduler by reinforcement learning on recorded texts, with Stable-Baselines3.

    With --drafts a staged scheduler is trained, which decides after every drafted depth, by PPO over legal
    decisions (MaskablePPO of sb3-contrib); a step is a decision then, and the policy file is for --policies
    staged-learned@<out>. A decision to draft pays off later: --ppo.gamma 0.99 --ppo.gae-lambda 0.9.

    Every few steps the policy is tried on held-out texts; the best one is kept, as a file for --policies
    learned@<out>. Run the same command again after an interruption: it goes on from the last such trial.

    TensorBoard logs are in <out>.training, one run each for the training texts, where trees are drawn at
    random, and the held-out ones: decode/tokens_per_second, decode/accept_length (accepted drafts per step),
    decode/regret (time over that of the best possible schedules), decode/switch_rate (share of the steps with
    another tree than the step before), decode/action_<k> (share of the steps with tree k); and train/... of
    the algorithm.

    The held-out texts choose which policy is kept: report on others still.

    Example: python -m train rl --recordings chat:calibration math:calibration --out runs/ppo.npz

    Attributes:
        recordings: Texts to train on, pooled: chat, math, ... or .npz files, or halves of them, as in
            chat:calibration.
        out: Policy file to write (.npz); logs and the state to resume from go into <out>.training/.
        held_out: Recordings of other texts; by default every fourth text of the recordings is held out.
        algo: Algorithm; its settings are the options --<algo>.*.
        costs: Seconds of a step: auto, a cost table, or analytic:base=B,node=N,depth=D.
        bank: Trees to choose from: a known name or a JSON file.
        drafts: Staged: drafts of all the recordings, written by "train stages".
        stages: Staged: default, or a JSON file.
        reward: Reward. throughput_advantage without a reference takes the throughput of the best static tree.
        features: Groups of features, comma-separated, or all.
        probe: What is drafted before each decision: none, first, chain or union.
        max_new_tokens: Token cap of each text; by default that of the recordings.
        capacity: KV rows; prompt, text and the largest tree must fit.
        steps: Decode steps to train for.
        envs: Texts that are decoded side by side.
        hidden: Widths of the hidden layers.
        evaluate_every: Decode steps between trials on the held-out texts.
        seed: Seed of everything random.
        overwrite: Train anew when the policy is there and no interrupted training to go on with.
        ppo: Settings of PPO.
        dqn: Settings of DQN.
        a2c: Settings of A2C.
    """

    recordings: tuple[str, ...]
    out: Path
    held_out: tuple[str, ...] = ()
    algo: Literal["ppo", "dqn", "a2c"] = "ppo"
    costs: str = "auto"
    bank: str = "default"
    drafts: tuple[str, ...] = ()
    stages: str = "default"
    reward: str = "throughput_advantage"
    features: str = "all"
    probe: Probe = "none"
    max_new_tokens: int | None = None
    capacity: int = 2048
    steps: int = 1_000_000
    envs: int = 256
    hidden: tuple[int, ...] = (64, 64)
    evaluate_every: int = 50_000
    seed: int = 0
    overwrite: bool = False
    ppo: PPOSettings = field(default_factory=PPOSettings)
    dqn: DQNSettings = field(default_factory=DQNSettings)
    a2c: A2CSettings = field(default_factory=A2CSettings)

    def __post_init__(self) -> None:
        """Refuse settings that no training can run with, or that would have no effect."""
        if self.algo not in _ALGORITHMS:
            raise ValueError(f"unknown algo {self.algo!r}; choose one of {', '.join(_ALGORITHMS)}")
        if not self.recordings:
            raise ValueError("name at least one recording to train on")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must name widths of at least 1, got {self.hidden}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for other in set(_ALGORITHMS) - {self.algo}:
            own = getattr(self, other)
            if own != type(own)():
                raise ValueError(f"the settings of {other} would have no effect with algo {self.algo}")

        ignored = ("bank", "probe") if self.drafts else ("stages",)
        defaults = {own.name: own.default for own in fields(self)}
        if wrong := [name for name in ignored if getattr(self, name) != defaults[name]]:
            raise ValueError(
                f"{', '.join(wrong)} would have no effect {'with' if self.drafts else 'without'} drafts"
            )
        if self.drafts and self.algo != "ppo":
            raise ValueError(f"algo {self.algo} knows no masks of legal decisions; stages need ppo")

    @property
    def settings(self) -> Settings:
        """Settings of the algorithm."""
        settings: Settings = getattr(self, self.algo)
        return settings

    @property
    def environment(self) -> dict[str, Any]:
        """Arguments of the replay environment, but for the recording and the reward."""
        kind = ("drafts", "stages") if self.drafts else ("bank", "probe")
        names = ("costs", "features", "max_new_tokens", "capacity", *kind)
        return {name: getattr(self, name) for name in names}

    @property
    def record(self) -> dict[str, Any]:
        """All settings in force, as JSON values."""
        others = set(_ALGORITHMS) - {self.algo}
        settings = {name: value for name, value in asdict(self).items() if name not in others}
        return settings | {"out": str(self.out)}

    @property
    def folder(self) -> Path:
        """Where logs and the state to resume from go."""
        return self.out.with_name(f"{self.out.name}.training")

    @property
    def state_path(self) -> Path:
        """The state to resume from."""
        return self.folder / "state.pt"


def train_scheduler(config: SchedulerTraining) -> None:
    """Train, write the policy that was best on held-out texts, and print what it reaches there.

    Raises:
        FileExistsError: When the policy is there, and no interrupted training to go on with.
        FileNotFoundError: When a recording, the costs or the bank is not there.
        ValueError: When a setting is unknown, recordings, costs and bank or stages do not fit together, an
            interrupted training cannot be gone on with, or Stable-Baselines3, sb3-contrib or TensorBoard is
            not installed.
    """
    refuse_existing(config.out, overwrite=config.overwrite or config.state_path.is_file())
    trainer = _trainer()(config, *split_texts(config.recordings, config.held_out, config.folder))
    Console().print(trainer.run())


def _trainer() -> Callable[..., Any]:
    try:
        from train.rl_trainer import SchedulerTrainer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ValueError(f"training needs {error.name}: pip install 'entmtp-env[rl]'") from error
    return SchedulerTrainer
