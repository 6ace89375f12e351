"""PPO for draft tree schedulers with Ray RLlib, whose runners and learners spread over cores and machines.

    pip install -e ".[rllib]"       # without -c constraints.txt, as RLlib pins Gymnasium to an older version
    python examples/train_rllib.py --recordings chat:calibration --held-out chat:evaluation --out policy.npz
    python -m eval replay --recordings chat:evaluation --policies learned@policy.npz

Each of ``--runners`` processes steps its own copies of the plain Gymnasium environment; on a cluster, where
``ray.init`` finds one, they run on all of its machines. The policy file needs no Ray.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ray
import tyro
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule

from policies.learned import Learned
from train.numpy_network import to_numpy
from train.rl_replays import Replays


@dataclass(frozen=True)
class Args:
    """PPO on recorded texts, with Ray RLlib."""

    recordings: tuple[str, ...] = ("chat:calibration",)  # texts to train on
    held_out: tuple[str, ...] = ("chat:evaluation",)  # texts to report on
    costs: str = "auto"  # seconds of a step
    bank: str = "default"  # trees to choose from
    out: Path = Path("runs/rllib.npz")  # policy file to write
    seed: int = 0  # seed of everything random
    steps: int = 200_000  # decode steps to train for
    runners: int = 0  # processes that collect steps; 0: this one does
    envs: int = 32  # texts that each of them decodes side by side
    batch: int = 4096  # decode steps between updates
    minibatch: int = 512  # steps that are learned from at once
    epochs: int = 4  # passes over the steps of an update
    learning_rate: float = 1e-3  # of Adam at the start; it falls linearly to 0
    gamma: float = 0.9  # discount of a step
    gae_lambda: float = 0.9  # of generalised advantage estimation
    entropy: float = 0.003  # weight of the entropy
    hidden: int = 64  # width of the two hidden layers


def to_policy(module: RLModule, replays: Replays) -> Learned:
    """The actor, in NumPy. All features are within [0, 1], so that they were not normalised."""
    layers = [*module.encoder.actor_encoder.net.mlp, *module.pi.net.mlp]
    features = len(replays.envs.feature_names)
    return Learned(replays.env, to_numpy(layers, np.zeros(features), np.ones(features)))


def main(args: Args) -> None:
    """Train, write the policy, and say what it and its bounds reach on the held-out texts."""
    prices = {"costs": args.costs, "bank": args.bank}
    train, held_out = (Replays(names, prices) for names in (args.recordings, args.held_out))
    static = train.best_static
    # The reward: tokens won over the best static tree.
    reward = f"throughput_advantage:reference={train.run(static)['tokens_per_second']!r}"
    config = (
        PPOConfig()
        # The module's name before the colon makes every process register the environment.
        .environment(
            "entmtp_env:EntMTP/Replay-v0",
            env_config={"recording": args.recordings, "reward": reward, **prices},
        )
        .env_runners(num_env_runners=args.runners, num_envs_per_env_runner=args.envs)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[args.hidden] * 2, fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .training(
            train_batch_size_per_learner=args.batch,
            minibatch_size=args.minibatch,
            num_epochs=args.epochs,
            lr=[[0, args.learning_rate], [args.steps, 0.0]],
            gamma=args.gamma,
            lambda_=args.gae_lambda,
            clip_param=0.2,
            entropy_coeff=args.entropy,
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .debugging(seed=args.seed)
    )
    ray.init(include_dashboard=False)
    algorithm = config.build_algo()
    step = 0
    while step < args.steps:
        results = algorithm.train()
        step = int(results["env_runners"]["num_env_steps_sampled_lifetime"])
        policy = to_policy(algorithm.get_module(), held_out)
        rate = held_out.run(policy)["tokens_per_second"]
        print(f"step {step:>9,}: held out {rate:.2f} tokens/s", flush=True)
    policy.save(args.out, {"example": "train_rllib.py", "seed": args.seed})
    algorithm.stop()
    ray.shutdown()
    figures = held_out.run(static)
    rate = figures["tokens_per_second"]
    print(f"best static tree ({static.spec}) {rate:.2f}, oracle {rate * figures['regret']:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Args))
