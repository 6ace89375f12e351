"""Draft trees, the topology bank, and the published presets."""

from entmtp_env.trees.bank import AUTOREGRESSIVE, TopologyBank, load_bank
from entmtp_env.trees.presets import default_bank, published_trees
from entmtp_env.trees.tree import DraftTree, Path

__all__ = [
    "AUTOREGRESSIVE",
    "DraftTree",
    "Path",
    "TopologyBank",
    "default_bank",
    "load_bank",
    "published_trees",
]
