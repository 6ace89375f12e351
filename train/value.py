"""``python -m train value``: schedulers by supervision, from what recorded texts tell of every tree."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from entmtp_env.features import Probe
from entmtp_env.files import refuse_existing
from entmtp_env.progress import progress_bar
from entmtp_env.provenance import describe_run
from entmtp_env.replay.costs import load_costs
from entmtp_env.replay.oracle import solve
from entmtp_env.replay.shipped import load_recording
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.network_policy import NetworkPolicy
from train.rl_texts import CALIBRATION, held_out_of, split_texts
from train.supervision import Method, Supervision, make_policy, token_accuracy
from train.value_table import LEGEND, Judge, value_table


@dataclass(frozen=True)
class ValueTraining:
    """Train small networks by supervision on recorded texts, which tell what every tree would have done.

    "value" predicts the tokens that each tree would emit; with the seconds of a cost table that is the policy
    value:costs=<table>@<out>/value.npz, which needs no other training for other costs. "imitation" learns
    the trees of the best possible schedule, each mistake weighed by the seconds that it loses; "improvement"
    learns those that save most seconds when the best single tree goes on behind them. These two are policies
    learned@<out>/<method>.npz, for the costs that they were trained with. All are taught where their own
    decisions lead (as in DAgger, arXiv 1011.0686). Prints what they reach on held-out texts.

    Example: python -m train value --recordings chat:calibration --held-out chat:evaluation --out runs/value

    Attributes:
        out: Folder for the policy files: <out>/<method>.npz.
        recordings: Texts to train on, pooled: chat, math, ... or .npz files, or halves of them, as in
            chat:calibration.
        held_out: Recordings of other texts, each with its own column. By default the other halves of the
            recordings when these are the default ones, else every fourth text of the recordings.
        costs: Seconds of a step: auto, a cost table, or analytic:base=B,node=N,depth=D.
        bank: Trees to choose from: default or a JSON file.
        features: Groups of features, comma-separated, or all; "value" needs position.
        probe: What is drafted before each decision: none, first, chain or union.
        max_new_tokens: Token cap of each text; by default that of the recordings.
        capacity: KV rows; prompt, text and the largest tree must fit.
        methods: What to train: value, imitation, improvement.
        rounds: How often training goes on with the visits of its own decisions.
        epochs: Passes over the visits in each round; fewer when texts that decide gain no more.
        seed: Seed of everything random.
        overwrite: Replace the policies that are there.
    """

    out: Path
    recordings: tuple[str, ...] = CALIBRATION
    held_out: tuple[str, ...] = ()
    costs: str = "auto"
    bank: str = "default"
    features: str = "all"
    probe: Probe = "none"
    max_new_tokens: int | None = None
    capacity: int = 2048
    methods: tuple[Method, ...] = ("value", "imitation", "improvement")
    rounds: int = 2
    epochs: int = 20
    seed: int = 0
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that train nothing."""
        if not (self.recordings and self.methods):
            raise ValueError("recordings and methods must each name at least one")
        if self.rounds < 0 or self.epochs < 1 or self.seed < 0:
            raise ValueError(
                f"rounds={self.rounds} and seed={self.seed} must be >= 0, epochs={self.epochs} >= 1"
            )

    def path(self, method: Method) -> Path:
        """Where a policy goes."""
        return self.out / f"{method}.npz"

    def environments(self, *recordings: str) -> ReplayVectorEnv:
        """One for each text of the recordings.

        Raises:
            ValueError: When they do not fit together, or the KV cache may end a text.
        """
        envs = ReplayVectorEnv(
            num_envs=len(load_recording(recordings).texts),
            recording=recordings,
            costs=self.costs,
            bank=self.bank,
            features=self.features,
            probe=self.probe,
            max_new_tokens=self.max_new_tokens,
            capacity=self.capacity,
        )
        envs.tables.check_lengths()
        return envs


def train_value(config: ValueTraining) -> dict[Method, NetworkPolicy]:
    """Train, print what the policies reach on held-out texts, and write them.

    Returns:
        The policies.

    Raises:
        FileExistsError: When a policy is there already.
        FileNotFoundError: When a recording, the costs or the bank is not there.
        ValueError: When a setting is unknown, recordings, costs and bank do not fit together, a held-out text
            is trained on or of another model, the KV cache may end a text, or there are fewer than two.
    """
    refuse_existing(*map(config.path, config.methods), overwrite=config.overwrite)
    config.out.mkdir(parents=True, exist_ok=True)
    chosen = held_out_of(config.recordings, config.held_out)
    own, others = split_texts(config.recordings, chosen, config.out)
    held_out = {name: config.environments(name) for name in others}
    with progress_bar() as bar:
        lessons = Supervision(config, config.environments(*own), bar)
        networks = {method: lessons.teach(method) for method in config.methods}
    best = lessons.oracle.best_static
    oracles = [solve(envs.tables) for envs in held_out.values()]
    bounds = [(own.static_seconds[best].sum(), own.seconds.sum()) for own in oracles]
    judge = Judge(held_out, f"static:{lessons.envs.bank.names[best]}", bounds)
    for method, network in networks.items():
        judge.add(method, partial(make_policy, method, network))
    accuracy = token_accuracy(networks["value"], held_out.values()) if "value" in networks else {}
    costs = load_costs(config.costs)
    record = describe_run() | {
        "settings": asdict(config) | {"out": str(config.out), "held_out": others},
        "environment": lessons.envs.manifest,
        "texts": lessons.envs.num_envs,
        "costs": {"name": costs.name, **costs.manifest},
        "held_out": judge.record(),
        "held_out_r2": accuracy,
    }
    policies = {method: make_policy(method, network, lessons.envs) for method, network in networks.items()}
    for method, policy in policies.items():
        policy.save(config.path(method), record)
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    console.print(value_table(judge, costs.name))
    console.print(LEGEND, markup=False)
    if accuracy:
        trees = ", ".join(f"{name} {share:.2f}" for name, share in accuracy.items())
        console.print(f"R² of the tokens of a step: {trees}", markup=False)
    paths = ", ".join(str(config.path(method)) for method in policies)
    console.print(f"wrote {paths}", soft_wrap=True, markup=False)
    return policies
