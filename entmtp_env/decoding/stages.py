"""What a staged scheduler may draft and verify; to it what the topology bank is to one that chooses trees."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve, Floats
from entmtp_env.files import read_json, write_text_atomically

_FORMAT = 1
_SHIPPED = Path(str(resources.files("entmtp_env"))) / "data" / "stages"
DEEPER = 0
"""The action that drafts one more depth; action k verifies with the k-th budget."""


@dataclass(frozen=True)
class Stages:
    """Depths to draft one by one, and the numbers of nodes that may be verified after each.

    Args:
        name: Name, for tables and manifests.
        shape: How wide each depth is.
        budgets: Numbers of nodes to verify, rising from 0 (plain autoregressive decoding).
        curves: Per depth, from the product of the heads' confidences along a path to the probability that the
            path is true; none = that product itself. Nodes are chosen by it.

    Raises:
        ValueError: When the budgets do not rise from 0, exceed the draft, or there is not one curve a depth.
    """

    name: str
    shape: DraftShape
    budgets: tuple[int, ...]
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        whole = all(type(budget) is int for budget in self.budgets)
        if not whole or self.budgets[:1] != (0,) or (np.diff(self.budgets) < 1).any():
            raise ValueError(f"budgets must be whole numbers that rise from 0, got {self.budgets}")
        if self.max_nodes > self.shape.nodes:
            raise ValueError(
                f"a budget of {self.max_nodes} nodes exceeds the {self.shape.nodes} drafted ones"
            )
        if len(self.curves) not in (0, self.depth):
            raise ValueError(f"expected one curve for each of {self.depth} depths, got {len(self.curves)}")

    @property
    def depth(self) -> int:
        """D, the number of depths."""
        return self.shape.depth

    @property
    def max_nodes(self) -> int:
        """The largest budget."""
        return self.budgets[-1]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name of each action: ``deeper``, ``verify-0``, ..."""
        return ("deeper", *(f"verify-{budget}" for budget in self.budgets))

    def __len__(self) -> int:
        """Number of actions, 1 + the number of budgets."""
        return len(self.names)

    @cached_property
    def masks(self) -> npt.NDArray[np.bool_]:
        """Which actions are legal with 0, 1, ..., D drafted depths, ``(D + 1, actions)``."""
        drafted = np.array(self.shape.starts[1:]) - 1
        deeper = np.arange(self.depth + 1)[:, None] < self.depth
        return np.concatenate((deeper, np.array(self.budgets) <= drafted[:, None]), axis=1)

    def settle(self, action: int, depth: int) -> int:
        """The nearest legal action: itself, or the largest budget that the draft can fill.

        Args:
            action: An action, legal or not.
            depth: Drafted depths.

        Raises:
            ValueError: When there is no such action at all.
        """
        if not 0 <= action < len(self):
            raise ValueError(f"action {action} is outside 0..{len(self) - 1}: {', '.join(self.names)}")
        legal = self.masks[depth]
        return action if legal[action] else int(legal.nonzero()[0][-1])

    def calibrated(self, depth: int, raw: Floats, above: Floats) -> npt.NDArray[np.float64]:
        """Path values: the calibrated products of confidences, never above the parent's value.

        Args:
            depth: Of the nodes: 1, 2, ..., D.
            raw: Their products of confidences.
            above: The path values of their parents, in the same shape.
        """
        return np.minimum(self.curves[depth - 1](raw) if self.curves else raw, above, dtype=np.float64)

    @property
    def fingerprint(self) -> str:
        """Hash of everything but the name; a saved policy carries it."""
        nameless = repr(dataclasses.replace(self, name=""))
        return hashlib.sha256(nameless.encode()).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the stages as JSON, atomically."""
        document = {"format": _FORMAT, **dataclasses.asdict(self)}
        write_text_atomically(path, json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Stages:
        """Read stages from JSON.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When the file does not hold stages; the message says what is wrong with it.
        """
        try:
            document = read_json(path)
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']!r}, expected {_FORMAT}")
            shape = DraftShape(tuple(document["shape"]["expand"]), tuple(document["shape"]["children"]))
            curves = tuple(Curve(tuple(c["inputs"]), tuple(c["outputs"])) for c in document["curves"])
            return cls(str(document["name"]), shape, tuple(document["budgets"]), curves)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{path} does not hold stages: {error!r}") from error


def default_stages() -> Stages:
    """Four depths of up to 16 nodes, and budgets up to 48; path values as the heads claim them."""
    shape = DraftShape((1, 4, 4, 4), (8, 4, 4, 4))
    return Stages("default", shape, (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48))


def load_stages(name_or_path: str) -> Stages:
    """Stages by name or from a JSON file.

    Args:
        name_or_path: ``"default"``, the same with path values calibrated for the default model's heads
            (``"smollm2-staged"``), or a file written by :meth:`Stages.save`.

    Raises:
        FileNotFoundError: When it is neither.
        ValueError: When the file does not hold stages.
    """
    if name_or_path == "default":
        return default_stages()
    shipped = {path.stem: path for path in sorted(_SHIPPED.glob("*.json"))}
    path = shipped.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        raise FileNotFoundError(
            f"no stages {name_or_path!r}: expected {', '.join(['default', *shipped])} or the path of a file "
            "written by Stages.save"
        )
    return Stages.load(path)
