"""What a scheduler sees at a decision: one float32 vector of named features per environment.

Everything is batched over a leading dimension N, so that the live environment (N = 1) and the lock-step
replay of thousands of episodes share one definition.

To add a feature, give it a row in :func:`feature_table` and a line in :meth:`FeatureTracker._write`.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

Probe = Literal["none", "chain", "union"]
"""What is drafted before the decision: nothing, the greedy chain, or the union of the bank's trees."""

FloatArray = npt.NDArray[np.floating]
_Rows = slice | npt.NDArray[np.intp]

GROUPS = ("base", "entropy", "heads", "acceptance", "position", "token", "trees")
ENTROPY_WINDOWS = (4, 8, 12, 16, 24, 32, 64)
ACCEPT_WINDOWS = (4, 16)
TOKEN_SHAPES = ("digit", "space", "newline", "punctuation", "wordpiece")

_ENTROPY_ALPHAS = 2.0 / (np.array(ENTROPY_WINDOWS) + 1)
_ACCEPT_ALPHAS = 2.0 / (np.array(ACCEPT_WINDOWS) + 1)
_FAMILIES = ("entropy_ema", "path_value", "head_entropy", "accept_ema", "root_is", "tree_value")


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
        self.features = tuple(f for f in feature_table(depth, tree_sizes) if f.group in chosen)
        self.names = tuple(feature.name for feature in self.features)
        self.low = np.array([feature.low for feature in self.features], dtype=np.float32)
        self.high = np.array([feature.high for feature in self.features], dtype=np.float32)
        self.fingerprint = hashlib.sha256(repr((self.names, depth, probe)).encode()).hexdigest()[:16]

    def tracker(self, num_envs: int) -> FeatureTracker:
        """The running features of ``num_envs`` environments."""
        return FeatureTracker(self, num_envs)


@dataclass
class Signals:
    """What the decoder knows at a decision, for N environments; nothing is kept or modified.

    The three about the last step (``accept_length``, ``first_draft_right``, ``action``) are ignored by a
    reset.

    Attributes:
        base_top1: p_0, top-1 probability of the distribution behind the root, ``(N,)``.
        base_entropy: Its entropy in nats / ln V, ``(N,)``.
        head_top1: p_d, top-1 probability of head d along the greedy chain of the last draft, ``(N, D)``;
            NaN where that depth was not drafted.
        head_entropy: Entropy of the same distributions / ln V', ``(N, D)``; NaN where not drafted.
        accept_length: Accepted drafts of the last step, ``(N,)``.
        first_draft_right: 1 when the last step's first greedy draft was the true token, else 0, ``(N,)``;
            NaN when nothing was drafted.
        generated_fraction: Generated tokens / token cap, ``(N,)``.
        context_fraction: Tokens in the context / KV capacity, ``(N,)``.
        action: Index of the last step's tree, ``(N,)``.
        root_shape: :func:`root_shape` of the root's text, ``(N, 5)``.
        tree_value: Sum of the path values over each tree's nodes, ``(N, K)``; only with ``probe="union"``.
    """

    base_top1: FloatArray
    base_entropy: FloatArray
    head_top1: FloatArray
    head_entropy: FloatArray
    accept_length: npt.NDArray[np.integer]
    first_draft_right: FloatArray
    generated_fraction: FloatArray
    context_fraction: FloatArray
    action: npt.NDArray[np.integer]
    root_shape: npt.NDArray[np.bool_]
    tree_value: FloatArray | None = None


class FeatureTracker:
    """The running features of N environments: call :meth:`reset`, then :meth:`step` after each decode step.

    Args:
        features: The feature set.
        num_envs: N.
    """

    def __init__(self, features: FeatureSet, num_envs: int) -> None:
        self.features = features
        self._at = {name: column for column, name in enumerate(features.names)}
        self._block = {family: _columns(features.names, family) for family in _FAMILIES}
        self._groups = frozenset(features.groups)
        self._everyone = np.arange(num_envs)
        # Unclipped; the averages and the last known values live in it, so a step updates it in place.
        self._vector = np.zeros((num_envs, len(features.names)))
        # Column 0 is the root's certain 1, so that the running product also serves a bank of depth 0.
        self._confidence = np.ones((num_envs, features.depth + 1))
        self._accepts = _Recent(num_envs)
        self._agreements = _Recent(num_envs)

    def reset(self, signals: Signals, mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Start episodes.

        A depth that was never drafted counts as confidence 1 and entropy 0: a policy that starts small still
        learns what deep trees promise.

        Args:
            signals: The signals at the first decision.
            mask: Which environments, ``(N,)``; ``None`` for all.
        """
        rows = _rows(mask)
        self._vector[rows] = 0.0
        self._confidence[rows] = 1.0
        self._accepts.clear(rows)
        self._agreements.clear(rows)
        self._write(rows, signals, first=True)

    def step(self, signals: Signals, mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Advance episodes by one decode step.

        Args:
            signals: The signals at the decision after the step.
            mask: Which environments, ``(N,)``; ``None`` for all. The others keep their features.
        """
        self._write(_rows(mask), signals, first=False)

    def observe(self) -> npt.NDArray[np.float32]:
        """The features now, a fresh ``(N, F)`` array, clipped to the bounds; NaN becomes the lower bound."""
        clipped = np.fmin(np.fmax(self._vector, self.features.low), self.features.high)
        return clipped.astype(np.float32)

    def _write(self, rows: _Rows, s: Signals, first: bool) -> None:
        """Fill ``rows`` of the vector, group by group; ``first`` on a reset, when there is no last step."""
        v, at, block, on = self._vector, self._at, self._block, self._groups
        if "base" in on:
            v[rows, at["base_top1"]] = s.base_top1[rows]
            v[rows, at["base_entropy"]] = s.base_entropy[rows]
        if "entropy" in on:
            entropy, ema = s.base_entropy[rows][:, None], v[rows, block["entropy_ema"]]
            v[rows, block["entropy_ema"]] = entropy if first else ema + _ENTROPY_ALPHAS * (entropy - ema)
        if "heads" in on:
            self._write_heads(rows, s)
        if "acceptance" in on and not first:
            self._write_acceptance(rows, s)
        if "position" in on:
            v[rows, at["generated_fraction"]] = s.generated_fraction[rows]
            v[rows, at["context_fraction"]] = s.context_fraction[rows]
            if not first:
                v[rows, at["last_tree"]] = s.action[rows] / max(self.features.num_trees - 1, 1)
        if "token" in on:
            v[rows, block["root_is"]] = s.root_shape[rows]
        if "trees" in on:
            if s.tree_value is None:
                raise ValueError("the feature group 'trees' needs Signals.tree_value, shape (N, K); got None")
            v[rows, block["tree_value"]] = s.tree_value[rows]

    def _write_heads(self, rows: _Rows, s: Signals) -> None:
        v, at, block, p0 = self._vector, self._at, self._block, s.base_top1[rows]
        self._confidence[rows, 1:] = _latest(s.head_top1[rows], self._confidence[rows, 1:])
        reach = np.multiply.accumulate(self._confidence[rows], axis=1)
        paths = p0[:, None] * reach
        v[rows, block["path_value"]] = paths[:, 1:]
        v[rows, block["head_entropy"]] = _latest(s.head_entropy[rows], v[rows, block["head_entropy"]])
        # The published max(p_0, g_1 ... g_D); every p_i <= 1, so it is always p_0.
        v[rows, at["best_path_value"]] = p0
        v[rows, at["deep_path_value"]] = paths[:, -1]
        v[rows, at["expected_accept"]] = np.add.reduce(reach[:, 1:], axis=1) / max(self.features.depth, 1)

    def _write_acceptance(self, rows: _Rows, s: Signals) -> None:
        v, at, emas = self._vector, self._at, self._block["accept_ema"]
        accepts, agreements = self._accepts, self._agreements
        accept = np.minimum(s.accept_length[rows] / max(self.features.depth, 1), 1.0)
        v[rows, at["accept_last"]] = accept
        starting, ema = accepts.length[rows] == 0, v[rows, emas]
        v[rows, emas] = ema + np.maximum(_ACCEPT_ALPHAS, starting[:, None]) * (accept[:, None] - ema)

        accepts.push(rows, accept)
        v[rows, at["accept_mean_8"]] = accepts.mean(rows)
        v[rows, at["accept_min_8"]] = accepts.min(rows)
        v[rows, at["accept_max_8"]] = accepts.max(rows)

        right = s.first_draft_right[rows]
        drafted = ~np.isnan(right)
        agreements.push(self._everyone[rows][drafted], right[drafted])
        v[rows, at["head_agreement_8"]] = agreements.mean(rows)


class _Recent:
    """The last up to 8 values, each in [0, 1], of every environment: newest first, unused slots 0."""

    SIZE = 8
    # Row n lifts the unused slots behind n values to 1, out of the way of a minimum.
    _UNUSED = np.arange(SIZE) >= np.arange(SIZE + 1)[:, None]

    def __init__(self, num_envs: int) -> None:
        self.length = np.zeros(num_envs, dtype=np.intp)
        self._values = np.zeros((num_envs, self.SIZE))

    def clear(self, rows: _Rows) -> None:
        self.length[rows] = 0
        self._values[rows] = 0.0

    def push(self, rows: _Rows, values: FloatArray) -> None:
        self._values[rows, 1:] = self._values[rows, :-1]
        self._values[rows, 0] = values
        self.length[rows] = np.minimum(self.length[rows] + 1, self.SIZE)

    def mean(self, rows: _Rows) -> FloatArray:
        return np.add.reduce(self._values[rows], axis=1) / np.maximum(self.length[rows], 1)

    def min(self, rows: _Rows) -> FloatArray:
        return np.minimum.reduce(self._values[rows] + self._UNUSED[self.length[rows]], axis=1)

    def max(self, rows: _Rows) -> FloatArray:
        return np.maximum.reduce(self._values[rows], axis=1)


def _columns(names: Sequence[str], family: str) -> slice:
    columns = [column for column, name in enumerate(names) if name.startswith(f"{family}_")]
    return slice(columns[0], columns[-1] + 1) if columns else slice(0, 0)


def _rows(mask: npt.NDArray[np.bool_] | None) -> _Rows:
    return slice(None) if mask is None else np.flatnonzero(mask)


def _latest(new: FloatArray, last: FloatArray) -> FloatArray:
    """``new``, and where it is NaN the last known value."""
    return np.where(np.isnan(new), last, new)


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
