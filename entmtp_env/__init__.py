"""Gymnasium environments for schedulers of tree-based speculative decoding.

Importing this package registers ``EntMTP/Live-v0``, the real decoder, and ``EntMTP/Replay-v0``, its twin on
recorded texts; ``EntMTP/Staged-v0`` and ``EntMTP/StagedReplay-v0`` decide after every drafted depth, and
``EntMTP/PromptLookup-v0`` drafts from the text itself.
"""

import gymnasium

from entmtp_env.fork_safety import one_thread_after_fork
from entmtp_env.trees import DraftTree, TopologyBank, default_bank, load_bank

__version__ = "0.1.0"
__all__ = ["DraftTree", "TopologyBank", "default_bank", "load_bank"]

gymnasium.register(id="EntMTP/Live-v0", entry_point="entmtp_env.live:LiveEnv", nondeterministic=True)
gymnasium.register(
    id="EntMTP/Replay-v0",
    entry_point="entmtp_env.replay.env:ReplayEnv",
    vector_entry_point="entmtp_env.replay.vector_env:ReplayVectorEnv",
)
gymnasium.register(
    id="EntMTP/Staged-v0", entry_point="entmtp_env.staged_env:StagedEnv", nondeterministic=True
)
gymnasium.register(
    id="EntMTP/PromptLookup-v0", entry_point="entmtp_env.lookup_env:PromptLookupEnv", nondeterministic=True
)
gymnasium.register(
    id="EntMTP/StagedReplay-v0",
    entry_point="entmtp_env.replay.staged_env:StagedReplayEnv",
    vector_entry_point="entmtp_env.replay.staged_vector_env:StagedReplayVectorEnv",
)
one_thread_after_fork()
