import itertools
from random import Random

import numpy as np
import pytest
import torch

from entmtp_env.decoding import TreeDecoder
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.staged_rows import StagedRows
from entmtp_env.decoding.stages import Stages
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_nodes import StaticNodes
from tests.tiny import tiny_backbone, tiny_heads

SHAPE = DraftShape((1, 3, 4), (8, 4, 3))
STAGES = Stages("s", SHAPE, (0, SHAPE.nodes))


@pytest.fixture
def drafted():
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, "hydra")
    decoder = TreeDecoder(backbone, heads, capacity=128)
    decoder.start([1, 3, 5])
    buffers = StaticBuffers(backbone, heads, decoder._cache, None, STAGES.max_nodes)
    buffers.load(decoder.length, decoder.root, decoder.state)
    return backbone, heads, buffers, StaticNodes(heads, STAGES, buffers)


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 20, SHAPE.nodes + 1])
@torch.inference_mode()
def test_the_tree_is_that_of_the_host_and_the_rest_is_padding(drafted, rows):
    backbone, heads, buffers, nodes = drafted
    step, table, random = StagedRows(backbone, heads, buffers, nodes, rows), NodeTable(STAGES), Random(rows)
    for depth in (0, 1, 2, 3):
        if depth:
            nodes.draft(depth)
            stage = nodes.drafted[depth - 1]
            table.add(stage.values[0].tolist(), stage.expanded[0].tolist())
        most = min(rows, SHAPE.starts[depth + 1]) - 1
        for count in {0, most, random.randint(0, most)}:
            nodes.count.fill_(count)
            buffers.tokens.fill_(-1)
            step.draft()
            expected, built = table.best(count), step.built()
            for name in ("nodes", "parents", "depths", "attends"):
                np.testing.assert_array_equal(getattr(built, name), getattr(expected, name))
            assert int(buffers.tokens[0]) == int(buffers.root)
            assert buffers.tokens[1 : count + 1].tolist() == nodes.tokens[expected.nodes[1:]].tolist()
            t = step.tables
            for row, path in enumerate(t.paths[: count + 1].tolist()):
                assert path[int(t.depths[row]) :] == [row] * (len(path) - int(t.depths[row]))
                steps = [(above, below) for above, below in itertools.pairwise(path) if below != above]
                assert [int(t.parents[below]) for _, below in steps] == [above for above, _ in steps]
            padding = slice(count + 1, rows)
            assert (t.depths[padding] == -1).all()
            assert not t.sees[: count + 1, padding].any()
            assert t.sees[padding].sum(1).tolist() == [1] * (rows - count - 1)
            assert not t.sees[padding, : count + 1].any()
