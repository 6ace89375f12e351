"""What a scheduler sees at a decision: one float32 vector of named features per environment.

To add a feature, give it a row in :func:`feature_table` and a formula in its group in
:mod:`entmtp_env.tracker`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

Probe = Literal["none", "first", "chain", "union"]
"""What is drafted before the decision: nothing, the first depth (which every tree but the empty one drafts
anyway), the greedy chain, or the union of the bank's trees.

The ``heads`` features are of that draft alone, or of the last step's when nothing is drafted. So with
``"first"`` only depth 1 is told of: a deeper ``path_value_{d}`` equals its own, ``head_entropy_{d}`` is 0."""

GROUPS = ("base", "entropy", "heads", "acceptance", "position", "token", "trees")
ENTROPY_WINDOWS = (4, 8, 12, 16, 24, 32, 64)
ACCEPT_WINDOWS = (4, 16)
TOKEN_SHAPES = ("digit", "space", "newline", "punctuation", "wordpiece")


@dataclass(frozen=True)
class Feature:
    """One entry of the observation vector.

    Attributes:
        name: Unique name.
        group: One of :data:`GROUPS`; groups are switched on and off as a whole.
        low: Smallest value.
        high: Largest value.
    """

    name: str
    group: str
    low: float = 0.0
    high: float = 1.0


def feature_table(depth: int, tree_sizes: Sequence[int]) -> tuple[Feature, ...]:
    """Every feature of every group, in the order of the vector.

    Args:
        depth: D, the depth of the bank's deepest tree.
        tree_sizes: Number of nodes of each of the K trees. It bounds ``tree_value_{k}``, a sum of path values
            <= 1; the empty tree gets the bound 1, because Gymnasium warns of a Box of zero width.
    """
    depths = range(1, depth + 1)
    names = {
        "base": ["base_top1", "base_entropy"],
        "entropy": [f"entropy_ema_{w}" for w in ENTROPY_WINDOWS],
        "heads": [f"path_value_{d}" for d in depths]
        + [f"head_entropy_{d}" for d in depths]
        + ["best_path_value", "deep_path_value", "expected_accept"],
        "acceptance": ["accept_last"]
        + [f"accept_ema_{w}" for w in ACCEPT_WINDOWS]
        + ["accept_mean_8", "accept_min_8", "accept_max_8", "head_agreement_8"],
        "position": ["generated_fraction", "context_fraction", "last_tree"],
        "token": [f"root_is_{shape}" for shape in TOKEN_SHAPES],
    }
    unit = [Feature(name, group) for group, members in names.items() for name in members]
    trees = [Feature(f"tree_value_{k}", "trees", high=float(max(n, 1))) for k, n in enumerate(tree_sizes)]
    return (*unit, *trees)


class FeatureSet:
    """The features of an environment: which groups are on, their names, order and bounds.

    Args:
        depth: D, the depth of the bank's deepest tree.
        tree_sizes: Number of nodes of each tree of the bank, in the bank's order.
        groups: Names of groups, as a sequence or comma-separated; ``"all"`` is every group that the probe
            allows. The order of the vector is that of :data:`GROUPS`, however they are listed.
        probe: What is drafted before a decision. It decides how fresh the ``heads`` features are, and only
            ``"union"`` has the group ``trees``.

    Attributes:
        features: The chosen :class:`Feature` rows, in the order of the vector; F of them.
        names: Their names.
        groups: The chosen groups, in the same order.
        setting: The same as an environment's argument: ``"all"``, or comma-separated.
        low: Lower bounds, float32 ``(F,)``.
        high: Upper bounds, float32 ``(F,)``.
        fingerprint: Hash of the ordered names, the depth and the probe; a saved policy carries it.

    Raises:
        ValueError: When there is no group or an unknown one, ``trees`` is asked for without
            ``probe="union"``, the probe is unknown, the depth is negative, or there is no tree.
    """

    def __init__(
        self,
        depth: int,
        tree_sizes: Sequence[int],
        groups: Sequence[str] | Literal["all"] = "all",
        probe: Probe = "none",
    ) -> None:
        if depth < 0 or not tree_sizes:
            raise ValueError(
                f"features need depth >= 0 and one size per tree, got {depth} and {tree_sizes!r}"
            )
        if probe not in get_args(Probe):
            raise ValueError(f"unknown probe {probe!r}; choose one of {', '.join(get_args(Probe))}")
        available = GROUPS if probe == "union" else GROUPS[:-1]
        chosen = set(groups.split(",") if isinstance(groups, str) else groups)
        if chosen == {"all"}:
            chosen = set(available)
        if not chosen or not chosen <= set(available):
            unknown = ", ".join(map(repr, sorted(chosen - set(available)))) or "none"
            raise ValueError(
                f"feature groups: {unknown}; with probe={probe!r} choose 'all' or one or more of "
                f"{', '.join(available)}" + ("" if probe == "union" else "; 'trees' needs probe='union'")
            )
        self.depth = depth
        self.num_trees = len(tree_sizes)
        self.probe = probe
        self.groups = tuple(group for group in GROUPS if group in chosen)
        self.setting = "all" if chosen == set(available) else ",".join(self.groups)
        self.features = tuple(f for f in feature_table(depth, tree_sizes) if f.group in chosen)
        self.names = tuple(feature.name for feature in self.features)
        self.low = np.array([feature.low for feature in self.features], dtype=np.float32)
        self.high = np.array([feature.high for feature in self.features], dtype=np.float32)
        self.fingerprint = hashlib.sha256(repr((self.names, depth, probe)).encode()).hexdigest()[:16]


def root_shape(text: str) -> tuple[bool, ...]:
    """The shape of a token's text, in the order of :data:`TOKEN_SHAPES`.

    Returns:
        Whether the text contains a digit; starts with a space; contains a newline; is, spaces aside, nothing
        but punctuation and symbols (Unicode P* and S*); starts with a letter, and so continues a word.
    """
    visible = [char for char in text if not char.isspace()]
    return (
        any(char.isdigit() for char in text),
        text.startswith(" "),
        "\n" in text,
        bool(visible) and all(unicodedata.category(char)[0] in "PS" for char in visible),
        text[:1].isalpha(),
    )
