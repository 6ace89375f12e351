"""PPO for draft tree schedulers in one file, in the style of CleanRL: PyTorch and the vectorised replay only.

    python examples/train_ppo.py --recordings chat:calibration --held-out chat:evaluation --out policy.npz
    python -m eval replay --recordings math --policies learned@policy.npz

``python -m train rl`` does the same with Stable-Baselines3, and keeps logs and the best policy on the way.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical

from entmtp_env.replay.oracle import solve
from entmtp_env.replay.vector_env import ReplayVectorEnv
from policies.base import SchedulerPolicy
from policies.learned import Learned
from policies.lockstep import replay
from policies.static import Static
from train.numpy_network import to_numpy


@dataclass(frozen=True)
class Args:
    """PPO on recorded texts."""

    recordings: tuple[str, ...] = ("chat:calibration",)  # texts to train on
    held_out: tuple[str, ...] = ("chat:evaluation",)  # texts to report on
    costs: str = "auto"  # seconds of a step
    bank: str = "default"  # trees to choose from
    out: Path = Path("runs/ppo.npz")  # policy file to write
    seed: int = 0  # seed of everything random
    steps: int = 1_000_000  # decode steps to train for
    envs: int = 256  # texts that are decoded side by side
    rollout: int = 32  # decode steps of each environment between updates
    minibatches: int = 8  # parts of a rollout that are learned from one by one
    epochs: int = 4  # passes over a rollout
    learning_rate: float = 1e-3  # of Adam at the start; it falls linearly to 0
    gamma: float = 0.9  # discount of a step
    gae_lambda: float = 0.9  # of generalised advantage estimation
    clip: float = 0.2  # how far a step's probability may move in an update
    entropy: float = 0.003  # weight of the entropy
    hidden: int = 64  # width of the two hidden layers


def mlp(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Two hidden layers of tanh, orthogonally initialised."""
    layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def throughput(envs: ReplayVectorEnv, policy: SchedulerPolicy) -> float:
    """Tokens per second over all texts."""
    episodes = replay(envs, policy, [text.prompt_id for text in envs.prompts]).episodes
    return sum(e.tokens for e in episodes) / sum(e.seconds for e in episodes)


def replays(args: Args, recordings: tuple[str, ...]) -> ReplayVectorEnv:
    """Every recorded text once, side by side."""
    return ReplayVectorEnv(None, recording=recordings, costs=args.costs, bank=args.bank)


def main(args: Args) -> None:
    """Train, write the policy, and say what it and its bounds reach on the held-out texts."""
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    train, held_out = replays(args, args.recordings), replays(args, args.held_out)
    static = Static(held_out, train.bank.names[solve(train.tables).best_static])

    # The reward: tokens won over the best static tree.
    reference = throughput(train, static)
    envs = ReplayVectorEnv(
        args.envs,
        AutoresetMode.SAME_STEP,
        recording=args.recordings,
        costs=args.costs,
        bank=args.bank,
        reward=f"throughput_advantage:reference={reference!r}",
    )
    features, trees = len(envs.feature_names), len(envs.bank)
    actor, critic = mlp(features, args.hidden, trees, 0.01), mlp(features, args.hidden, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, args.learning_rate, eps=1e-5)

    # Observations are normalised by what a random schedule sees, once and for all.
    observations, _ = envs.reset(seed=args.seed)
    seen = [observations]
    for _ in range(args.rollout * 4):
        seen.append(envs.step(rng.integers(trees, size=args.envs))[0])
    mean, scale = np.mean(seen, axis=(0, 1)), np.std(seen, axis=(0, 1)) + 0.01

    def normalised(observations: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.clip((observations - mean) / scale, -10, 10).astype(np.float32))

    def policy() -> Learned:
        return Learned(held_out, to_numpy(actor, mean, scale))

    shape = args.rollout, args.envs
    states = torch.zeros(*shape, features)
    actions, log_probs, values = torch.zeros(shape, dtype=torch.long), torch.zeros(shape), torch.zeros(shape)
    rewards, dones = torch.zeros(shape), torch.zeros(shape)
    observations = normalised(envs.reset(seed=args.seed)[0])
    updates = max(1, args.steps // (args.rollout * args.envs))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / updates)

        with torch.no_grad():
            for t in range(args.rollout):
                choice = Categorical(logits=actor(observations))
                states[t], values[t], actions[t] = observations, critic(observations)[:, 0], choice.sample()
                log_probs[t] = choice.log_prob(actions[t])
                following, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
                rewards[t], dones[t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
                observations = normalised(following)

            advantages, last = torch.zeros(shape), torch.zeros(args.envs)
            next_value = critic(observations)[:, 0]
            for t in reversed(range(args.rollout)):
                goes_on = 1 - dones[t]
                delta = rewards[t] + args.gamma * goes_on * next_value - values[t]
                last = advantages[t] = delta + args.gamma * args.gae_lambda * goes_on * last
                next_value = values[t]
            returns = advantages + values

        flat = [x.flatten(0, 1) for x in (states, actions, log_probs, advantages, returns)]
        for _ in range(args.epochs):
            for batch in torch.randperm(len(flat[0])).chunk(args.minibatches):
                state, action, old_log_prob, advantage, target = (x[batch] for x in flat)
                choice = Categorical(logits=actor(state))
                ratio = (choice.log_prob(action) - old_log_prob).exp()
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                gain = torch.min(ratio * advantage, ratio.clamp(1 - args.clip, 1 + args.clip) * advantage)
                value_loss = (critic(state)[:, 0] - target).square().mean()
                loss = 0.5 * value_loss - gain.mean() - args.entropy * choice.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

        if update % max(1, updates // 10) == 0 or update == updates - 1:
            step = (update + 1) * args.rollout * args.envs
            print(f"step {step:>9,}: held out {throughput(held_out, policy()):.2f} tokens/s", flush=True)

    policy().save(args.out, {"example": "train_ppo.py", "seed": args.seed})
    oracle = solve(held_out.tables)
    bound = (oracle.tables.ends - oracle.tables.starts).sum() / oracle.seconds.sum()
    print(f"best static tree ({static.spec}) {throughput(held_out, static):.2f}, oracle {bound:.2f}")


if __name__ == "__main__":
    main(tyro.cli(Args))
