import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.stages import Stages
from entmtp_env.trees import DraftTree

SHAPE = DraftShape((1, 2, 2), (3, 2, 2))
# The second depth claims too little, so that some children would be worth more than their parents.
CURVES = tuple(Curve((0.0, 0.5, 1.0), y) for y in ((0.0, 0.2, 0.6), (0.0, 0.5, 1.0), (0.0, 0.0, 0.0)))
PLAIN, CURVED = Stages("plain", SHAPE, (0, 11)), Stages("curved", SHAPE, (0, 11), CURVES)


def drafted(seed):
    """Values and expanded nodes, depth by depth, as heads would give them; ties included."""
    rng = np.random.default_rng(seed)
    levels, above = [], np.ones(1, dtype=np.float32)
    for expand, children in zip(SHAPE.expand, SHAPE.children, strict=True):
        expanded = np.argsort(-above, kind="stable")[:expand]
        confidence = np.sort(rng.integers(0, 9, size=(expand, children)) / 16, axis=1)[:, ::-1]
        above = (above[expanded, None] * confidence).astype(np.float32).ravel()
        levels.append((above, expanded))
    return levels


def fill(table, seed, depth):
    table.clear()
    for values, expanded in drafted(seed)[:depth]:
        table.add(values.tolist(), expanded.tolist())


def paths_and_values(seed, depth, stages):
    """Path and path value of each node, from their definitions."""
    paths, worth = [[()]], [[1.0]]
    for d, (values, expanded) in enumerate(drafted(seed)[:depth]):
        children = SHAPE.children[d]
        paths.append([(*paths[d][place], rank) for place in expanded for rank in range(children)])
        curve = stages.curves[d] if stages.curves else lambda x: x
        own = [float(curve(value)) for value in values]
        worth.append([min(v, worth[d][expanded[i // children]]) for i, v in enumerate(own)])
    return list(itertools.chain(*paths))[1:], list(itertools.chain(*worth))[1:]


@given(st.integers(0, 999), st.integers(0, 3), st.data(), st.sampled_from([PLAIN, CURVED]))
def test_the_best_nodes_form_a_tree_and_no_tree_of_that_size_is_worth_more(seed, depth, data, stages):
    table = NodeTable(stages)
    fill(table, seed + 1, 3)
    fill(table, seed, depth)
    paths, values = paths_and_values(seed, depth, stages)
    count = data.draw(st.integers(0, len(paths)))
    built = table.best(count)
    chosen = [paths[node - 1] for node in built.nodes[1:].tolist()]
    # DraftTree refuses what is not closed under parents and lower siblings.
    tree = DraftTree("chosen", tuple(chosen))
    assert len(built) == len(tree) == count
    worth = sorted(values, reverse=True)[:count]
    assert sum(values[paths.index(path)] for path in chosen) == pytest.approx(sum(worth))
    np.testing.assert_allclose(table.descending, sorted(values, reverse=True))
    np.testing.assert_allclose(table.level, values[-len(table.level) :] if depth else [1.0])


@given(st.integers(0, 999), st.integers(1, 3), st.data())
def test_tables_are_those_of_the_same_draft_tree(seed, depth, data):
    table = NodeTable(CURVED)
    fill(table, seed, depth)
    paths, _ = paths_and_values(seed, depth, CURVED)
    built = table.best(data.draw(st.integers(0, len(paths))))
    row_paths = [(), *(paths[node - 1] for node in built.nodes[1:].tolist())]
    tree = DraftTree("t", tuple(row_paths[1:]))
    assert built.draft_tree("t") == tree
    # Rows of one depth may be in another order, by the parents' path values.
    place = [tree.rows[path] for path in row_paths]
    assert built.depths.tolist() == tree.depths[place].tolist()
    assert [place[row] for row in built.parents] == tree.parents[place].tolist()
    np.testing.assert_array_equal(built.attends, tree.attends[np.ix_(place, place)])


def test_more_nodes_than_were_drafted_are_refused():
    table = NodeTable(PLAIN)
    assert len(table.best(0)) == 0
    with pytest.raises(ValueError, match="1 nodes asked for, 0 drafted"):
        table.best(1)
    fill(table, 0, 1)
    with pytest.raises(ValueError, match="4 nodes asked for, 3 drafted"):
        table.best(4)
    table.clear()
    with pytest.raises(ValueError, match="0 drafted"):
        table.best(1)
