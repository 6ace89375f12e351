"""The topology bank: the trees among which a scheduler chooses, in a fixed order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath

from entmtp_env.files import read_json, write_text_atomically
from entmtp_env.trees.tree import DraftTree

AUTOREGRESSIVE = DraftTree("autoregressive")
"""The empty tree: one token per step, a legal action of every bank."""

_FORMAT = 1
_OF_SPECS = ":,=@|"
"""What separates the parts of a spec."""


class TopologyBank:
    """A named, ordered list of trees; action ``k`` of the environment is tree ``k``.

    The tables of every tree (EntMTP stage 2: masks, position offsets, parents) are built here once, so
    that switching between trees is a pointer swap.

    Args:
        trees: The trees, names unique; the empty tree is put first when it is not among them.
        name: Name of the bank, for tables and manifests.

    Raises:
        ValueError: When two trees share a name, or one could not be written in a policy's spec.

    Example:
        >>> bank = TopologyBank([DraftTree.chain(2)])
        >>> bank.names
        ('autoregressive', 'chain-2')
    """

    def __init__(self, trees: Iterable[DraftTree], name: str = "bank") -> None:
        members = tuple(trees)
        if not any(len(tree) == 0 for tree in members):
            members = (AUTOREGRESSIVE, *members)
        self.name = name
        self.trees = members
        self.names = tuple(tree.name for tree in members)
        doubled = sorted({n for n in self.names if self.names.count(n) > 1})
        if doubled:
            raise ValueError(f"bank {name!r}: tree names must be unique, {', '.join(doubled)} is not")
        if unfit := [n for n in self.names if not _can_be_written(n)]:
            raise ValueError(
                f"bank {name!r}: policies name trees in specs, where {', '.join(map(repr, unfit))} cannot be "
                f"written; a name is no bare number, true or false, and has none of {' '.join(_OF_SPECS)}"
            )
        for tree in members:
            _ = tree.attends, tree.parents, tree.depths, tree.level_starts, tree.greedy_depth

    def __len__(self) -> int:
        """Number of trees."""
        return len(self.trees)

    def __iter__(self) -> Iterator[DraftTree]:
        """The trees in the order of the actions."""
        return iter(self.trees)

    def __getitem__(self, index: int) -> DraftTree:
        """The tree of action ``index``."""
        return self.trees[index]

    def index(self, name: str) -> int:
        """Action of the tree called ``name``.

        Raises:
            ValueError: When there is none; the message lists the names.
        """
        if name not in self.names:
            raise ValueError(f"bank {self.name!r} has no tree {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)

    @property
    def depth(self) -> int:
        """Depth of the deepest tree."""
        return max(tree.depth for tree in self.trees)

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest tree."""
        return max(len(tree) for tree in self.trees)

    @property
    def union(self) -> DraftTree:
        """The tree with the nodes of all trees."""
        return DraftTree("union", tuple({node for tree in self.trees for node in tree.nodes}))

    @property
    def fingerprint(self) -> str:
        """Hash of names and topologies in order; a saved policy carries it."""
        parts = [(tree.name, tree.fingerprint) for tree in self.trees]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def save(self, path: str | FilePath) -> None:
        """Write the bank as JSON, atomically."""
        trees = [{"name": tree.name, "nodes": tree.nodes} for tree in self.trees]
        document = {"format": _FORMAT, "name": self.name, "trees": trees}
        write_text_atomically(path, json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: str | FilePath) -> TopologyBank:
        """Read a bank from JSON.

        Raises:
            FileNotFoundError: When there is no such file.
            ValueError: When the file is not a bank; the message says what is wrong with it.
        """
        try:
            document = read_json(path)
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']!r}, expected {_FORMAT}")
            trees = [DraftTree.from_paths(tree["name"], tree["nodes"]) for tree in document["trees"]]
            if not all(isinstance(name, str) for name in (document["name"], *(tree.name for tree in trees))):
                raise ValueError("names must be strings")
            return cls(trees, name=document["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a topology bank: {error!r}") from error


def _can_be_written(name: str) -> bool:
    """Whether a spec that has the name as a value, alone or in a list, is read as that name."""
    try:
        float(name)
    except ValueError:
        constant = name.lower() in ("", "true", "false")
        return not constant and name == name.strip() and not set(name) & set(_OF_SPECS)
    return False


def load_bank(name_or_path: str) -> TopologyBank:
    """A bank by name (``"default"``, or one that ships for the default model) or from a JSON file.

    Raises:
        FileNotFoundError: When it is neither a known name nor a file.
        ValueError: When the file is not a bank.
    """
    from entmtp_env.trees.presets import BANKS, shipped_banks

    if name_or_path in BANKS:
        return BANKS[name_or_path]()
    shipped = shipped_banks()
    path = shipped.get(name_or_path, FilePath(name_or_path))
    if not path.is_file():
        raise FileNotFoundError(
            f"no topology bank {name_or_path!r}: expected one of {', '.join([*BANKS, *shipped])} or the path "
            "of a JSON file written by TopologyBank.save"
        )
    return TopologyBank.load(path)
