"""A recording on which the best tree is told by one bit of the observation, and trainings on it."""

import dataclasses

import numpy as np

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.ranks import NO_TOKEN
from entmtp_env.decoding.stages import Stages
from entmtp_env.replay.staged_drafts import StagedDrafts, identity
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, TopologyBank
from tests.recordings import random_recording
from train.rl import SchedulerTraining
from train.rl_config import A2CSettings, DQNSettings, PPOSettings

BANK = TopologyBank([AUTOREGRESSIVE, DraftTree.chain(3)])
COSTS = "analytic:base=0.02,node=0.01"
BIT = "root_is_digit"
LENGTH, CAP = 30, 40

SETTINGS = {
    "ppo": PPOSettings(learning_rate=5e-3, n_steps=16, batch_size=128),
    "dqn": DQNSettings(learning_rate=5e-3, learning_starts=512, batch_size=128, target_update_interval=64),
    "a2c": A2CSettings(learning_rate=5e-3),
}


def told_bit_recording(texts=24):
    """Where the root is a digit, all three drafts of the chain are right, elsewhere none.

    A digit is as likely as not, so that with ``COSTS`` both trees alone make 50 tok/s: 1 token in 20 ms, or 1
    or 4 in 50 ms. Choosing by the bit makes 5 tokens in 70 ms.
    """
    rng = np.random.default_rng(0)
    recording = random_recording(rng, texts=400, longest=CAP, cap=CAP)
    chosen = [i for i, n in enumerate(recording.lengths) if n >= LENGTH][:texts]
    recording = recording.select(chosen)
    bit = rng.random(len(recording.tokens)) < 0.5
    ranks = np.where(bit[:, None], 0, 5) + np.zeros((1, 3), dtype=np.int32)
    ranks[recording.ranks == NO_TOKEN] = NO_TOKEN
    shape = recording.root_shape.copy()
    shape[:, 0] = bit
    return dataclasses.replace(recording, ranks=ranks.astype(np.int32), root_shape=shape)


def told_bit_training(folder, algo="ppo", **changes):
    """A training of a few seconds on that recording; its files are written when missing."""
    if not (folder / "bank.json").exists():
        told_bit_recording().save(folder / "texts.npz")
        BANK.save(folder / "bank.json")
    training = SchedulerTraining(
        recordings=(str(folder / "texts.npz"),),
        out=folder / "policy.npz",
        algo=algo,
        costs=COSTS,
        bank=str(folder / "bank.json"),
        steps=6_000,
        envs=32,
        hidden=(16,),
        evaluate_every=1_500,
        **{algo: SETTINGS[algo]},
    )
    return dataclasses.replace(training, **changes)


STAGES = Stages("told", DraftShape((1, 1, 1), (2, 2, 2)), (0, 1, 2, 4))
STAGED_COSTS = "analytic:base=0.02,node=0.0075,depth=0.001"
_CONFIDENCES = (0.6, 0.3)


def told_bit_stages(folder, texts=24):
    """Write that recording, staged drafts that tell nothing, and stages; settings of a staged replay.

    The four best nodes have the chain of three in them, so that a digit makes 4 tokens in 53 ms, another
    root 1 token in 20 ms, where 4 nodes throughout make 2.5 tokens in 53 ms.
    """
    recording = told_bit_recording(texts)
    levels = [np.outer(best, _CONFIDENCES).ravel() for best in (1, 0.6, 0.36)]
    drafts = StagedDrafts(
        identity(recording),
        STAGES.shape,
        tuple(text.prompt_id for text in recording.texts),
        recording.offsets,
        recording.tokens,
        np.tile(np.concatenate(levels).astype(np.float32), (len(recording.tokens), 1)),
        np.zeros((len(recording.tokens), 3), dtype=np.uint16),
    )
    recording.save(folder / "texts.npz")
    drafts.save(folder / "drafts.npz")
    STAGES.save(folder / "stages.json")
    return {
        "recordings": (str(folder / "texts.npz"),),
        "drafts": (str(folder / "drafts.npz"),),
        "stages": str(folder / "stages.json"),
        "costs": STAGED_COSTS,
    }
