"""A scheduler of your own beside the best static tree, on recorded texts.

    python examples/custom_policy.py recording=chat:evaluation

The class runs in every command that takes policies: --policies examples.custom_policy:Hopeful,floor=0.3
"""

import sys

import gymnasium
import numpy as np

import entmtp_env  # noqa: F401 - registers the environments
from entmtp_env.replay.oracle import solve
from policies import Memory, SchedulerPolicy, SchedulingEnv, make_policy, run_episode
from policies.choice import large_tree, small_tree


class Hopeful(SchedulerPolicy):
    """A large tree where the draft heads expect much, else a small one."""

    def __init__(self, env: SchedulingEnv, floor: float = 0.4) -> None:
        super().__init__(env)
        self.options, self.floor = {"floor": floor}, floor
        self.expected = self.feature("expected_accept")
        self.small, self.large = (self.bank.index(tree(self.bank)) for tree in (small_tree, large_tree))

    def act(self, observations: np.ndarray, memory: Memory) -> tuple[np.ndarray, Memory]:
        """One tree for each row of observations."""
        return np.where(observations[:, self.expected] > self.floor, self.large, self.small), memory


if __name__ == "__main__":
    env = gymnasium.make("EntMTP/Replay-v0", **dict(setting.split("=", 1) for setting in sys.argv[1:]))
    replay = env.unwrapped
    best = replay.bank.names[solve(replay.tables).best_static]
    for policy in (make_policy(f"static:{best}", env), Hopeful(env)):
        episodes = [run_episode(env, policy, text.prompt_id, seed=0) for text in replay.prompts]
        rate = sum(e.tokens for e in episodes) / sum(e.seconds for e in episodes)
        print(f"{policy.spec:40} {rate:6.2f} tokens/s")
