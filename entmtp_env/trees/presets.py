"""Trees and banks by name: the published ones, and a small default bank."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path

from entmtp_env.trees.bank import TopologyBank
from entmtp_env.trees.tree import DraftTree


@cache
def published_trees() -> dict[str, DraftTree]:
    """The 63-node trees published for Vicuna-7B.

    Returns:
        ``hydra-default`` (Hydra, arXiv 2402.05109), ``medusa-7b-stage1`` and ``medusa-7b-stage2``
        (Medusa, arXiv 2401.10774), each with up to 10 children a node and depth 4.
    """
    text = resources.files("entmtp_env").joinpath("data/published_trees.json").read_text(encoding="utf-8")
    return {name: DraftTree.from_paths(name, paths) for name, paths in json.loads(text)["trees"].items()}


def likely_tree(size: int, depth: int, confidence: tuple[float, ...], name: str) -> DraftTree:
    """The ``size`` most likely nodes under a rank model that is the same at every node.

    Args:
        size: Number of nodes.
        depth: Largest depth.
        confidence: Probability that the child of rank 0, 1, ... is the true token, given that its parent is;
            must not increase, so that the chosen nodes form a tree.
        name: Name of the tree.

    Raises:
        ValueError: When there are not so many nodes.
    """
    frontier: dict[tuple[int, ...], float] = {}
    candidates: dict[tuple[int, ...], float] = {(0,): confidence[0]} if depth else {}
    while len(frontier) < size:
        if not candidates:
            raise ValueError(
                f"tree {name!r}: {len(confidence)} ranks at depth {depth} make {len(frontier)} nodes, not "
                f"{size}"
            )
        node = min(candidates, key=lambda n: (-candidates[n], n))
        value = frontier[node] = candidates.pop(node)
        if len(node) < depth:
            child = (*node, 0)
            candidates[child] = value * confidence[0]
        if node[-1] + 1 < len(confidence):
            rank = node[-1]
            sibling = (*node[:-1], rank + 1)
            candidates[sibling] = value / confidence[rank] * confidence[rank + 1]
    return DraftTree(name, tuple(frontier))


# Shares of true tokens by rank, typical of small draft heads; they only shape the default bank.
_RANK_SHARES = (0.52, 0.12, 0.06, 0.04, 0.03, 0.022, 0.017, 0.014, 0.012, 0.01)


def default_bank() -> TopologyBank:
    """Ten trees from 0 to 63 nodes: chains, trees of the most likely nodes, and Hydra's published tree."""
    chains = [DraftTree.chain(depth) for depth in (1, 2, 3)]
    shapes = ((4, 2), (6, 3), (8, 4), (15, 4), (31, 4))
    trees = [likely_tree(size, depth, _RANK_SHARES, f"tree-{size}x{depth}") for size, depth in shapes]
    return TopologyBank([*chains, *trees, published_trees()["hydra-default"]], name="default")


BANKS: dict[str, Callable[[], TopologyBank]] = {"default": default_bank}


def shipped_banks() -> dict[str, Path]:
    """Files of the banks fitted to the default model that come with the package, by name."""
    folder = Path(str(resources.files("entmtp_env") / "data" / "banks"))
    # Beside each lies <name>.json.manifest.json, which says how it was chosen.
    return {path.stem: path for path in sorted(folder.glob("*.json")) if "." not in path.stem}
