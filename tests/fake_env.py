"""An environment without a model, for tests of what runs on top of one."""

import zlib
from typing import Any

import gymnasium
import numpy as np

from entmtp_env.trees.presets import default_bank

FEATURES = (
    "base_top1",
    "base_entropy",
    "best_path_value",
    "deep_path_value",
    "expected_accept",
    "accept_last",
    "generated_fraction",
    "last_tree",
)


NOT_FOR_FAKES = {
    "eagle2",
    "eagle2-cost-aware",
    "learned",
    "oracle",
    "prompt-lookup",
    "staged-learned",
    "staged-threshold",
    "value",
}
"""Built-in policies that need a file, recorded texts, stages or looked-up drafts."""


class FakeEnv(gymnasium.Env):
    """A decoder without a model: what each position would accept is drawn from (prompt, step)."""

    PREFILL = 0.25

    def __init__(self, features=FEATURES, bank=None, max_steps=30):
        self.bank = bank or default_bank()
        self.feature_names = tuple(features)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (len(self.feature_names),), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.bank))
        self.max_steps = max_steps
        self.max_tokens = 1 << 30
        self.last_step = 0, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        drawn = f"p{self.np_random.integers(100)}"
        self.prompt_id = (options or {}).get("prompt_id", drawn)
        self.steps, self.last, self.accepted, self.tokens, self.seconds = 0, 0, 0, 0, 0.0
        self.last_step = 0, 0.0
        return self._observation(), self._info("", 0, 0, 0.0, "")

    def step(self, action):
        action = int(action)
        tree = self.bank[action]
        before = self.tokens / self.seconds if self.steps else 0.0
        room = self.max_tokens - self.tokens
        self.accepted = min(tree.depth, room - 1, int(self._draw().integers(0, 6)))
        self.last, self.steps = action, self.steps + 1
        seconds = 0.01 + 0.001 * len(tree)
        self.tokens += self.accepted + 1
        self.seconds += seconds
        self.last_step = self.accepted + 1, seconds
        done = self.steps >= self.max_steps or self.tokens >= self.max_tokens
        info = self._info(tree.name, self.accepted, self.accepted + 1, seconds, "length" if done else "")
        return self._observation(), self.tokens / self.seconds - before, False, done, info

    def _draw(self):
        return np.random.default_rng([zlib.crc32(self.prompt_id.encode()), self.steps])

    def _observation(self):
        draw = self._draw()
        values = {name: draw.random() for name in FEATURES}
        values["accept_last"] = self.accepted / self.bank.depth
        values["last_tree"] = self.last / (len(self.bank) - 1)
        values["generated_fraction"] = min(1.0, self.steps / self.max_steps)
        return np.array([values[name] for name in self.feature_names], dtype=np.float32)

    def _info(self, tree, accepted, tokens, seconds, finish_reason) -> dict[str, Any]:
        return {
            "prompt_id": self.prompt_id,
            "prefill_seconds": self.PREFILL,
            "tree": tree,
            "accept_length": accepted,
            "tokens": tokens,
            "seconds": seconds,
            "draft_seconds": 0.25 * seconds,
            "verify_seconds": 0.5 * seconds,
            "total_tokens": self.tokens,
            "total_seconds": self.seconds,
            "finish_reason": finish_reason,
            "text": "x" * self.tokens if finish_reason else "",
        }
