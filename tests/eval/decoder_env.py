"""A fake decoder with the live environment's arguments: lossless, seeded, and it notes what is done to it."""

import hashlib
import zlib
from typing import Any, ClassVar

import gymnasium
import numpy as np

from entmtp_env.prompts import load_prompts
from entmtp_env.trees import load_bank
from tests.fake_env import FakeEnv

ENV_ID = "tests.eval.decoder_env:EntMTP/FakeDecoder-v0"


class DecoderEnv(FakeEnv):
    """Its text depends on prompt and seed alone and is cut at the token cap.

    Class attributes, since Gymnasium makes the instances: ``log`` of (event, detail), ``broken_on`` a prompt
    that ends in an error, ``lossy`` makes the text depend on the trees.
    """

    log: ClassVar[list[tuple[str, Any]]] = []
    broken_on: ClassVar[str | None] = None
    lossy: ClassVar[bool] = False

    def __init__(
        self,
        model,
        heads,
        bank,
        prompts,
        acceptance,
        max_new_tokens,
        probe,
        features,
        capacity,
        dtype,
        device,
    ):
        super().__init__(bank=load_bank(bank), max_steps=1 << 30)
        self.prompts = load_prompts(prompts)
        self.max_tokens = self.max_new_tokens = max_new_tokens
        self.capacity = capacity
        self.manifest = {"model": model, "dtype": dtype, "bank_fingerprint": self.bank.fingerprint}

    def warm_up(self, prompt_id=None):
        self.log.append(("warm_up", None))

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        self.depths = 0
        observation, info = super().reset(seed=seed, options=options)
        self.log.append(("reset", (self.prompt_id, seed)))
        return observation, info

    def step(self, action):
        self.log.append(("step", int(action)))
        self.depths += self.bank[int(action)].depth
        return super().step(action)

    def _draw(self):
        return np.random.default_rng([zlib.crc32(self.prompt_id.encode()), self.seed, self.tokens])

    def _info(self, tree, accepted, tokens, seconds, finish_reason):
        info = super()._info(tree, accepted, tokens, seconds, finish_reason)
        if finish_reason:
            key = (self.prompt_id, self.seed, self.depths if self.lossy else 0)
            info["text"] = hashlib.sha256(repr(key).encode()).hexdigest() + "." * self.tokens
            if self.prompt_id == self.broken_on:
                info["finish_reason"] = "error: out of memory"
        return info


gymnasium.register(id="EntMTP/FakeDecoder-v0", entry_point="tests.eval.decoder_env:DecoderEnv")
