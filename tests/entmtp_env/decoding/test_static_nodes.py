import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entmtp_env.decoding import TreeDecoder
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.isotonic import Curve
from entmtp_env.decoding.node_table import NodeTable
from entmtp_env.decoding.staged_draft import first_stage, next_stage
from entmtp_env.decoding.stages import Stages
from entmtp_env.decoding.static_buffers import StaticBuffers
from entmtp_env.decoding.static_nodes import UNKNOWN, StaticCurve, StaticNodes
from tests.tiny import tiny_backbone, tiny_heads

CPU = torch.device("cpu")
SHAPE = DraftShape((1, 3, 4), (8, 4, 3))
# The second depth claims too little, so that some children would be worth more than their parents.
CURVES = tuple(Curve((0.0, 0.3, 1.0), y) for y in ((0.0, 0.1, 0.9), (0.0, 0.5, 0.8), (0.0, 0.2, 1.0)))
rising = st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True).map(sorted)


@given(rising, st.data())
def test_a_curve_is_that_of_the_host_bit_by_bit(inputs, data):
    outputs = data.draw(st.lists(st.floats(0, 1), min_size=len(inputs), max_size=len(inputs)).map(sorted))
    values = np.array(data.draw(st.lists(st.floats(-0.5, 1.5), min_size=1)) + inputs)
    curve = Curve(tuple(inputs), tuple(outputs))
    with np.errstate(over="ignore", invalid="ignore"):
        got = StaticCurve(curve, CPU)(torch.from_numpy(values)).numpy()
        expected = curve(values)
    finite = np.isfinite(expected) & (np.diff(inputs, append=2).min() > 1e-300)
    np.testing.assert_array_equal(got[finite], expected[finite])


def prepared(arch, stages):
    """Drafted nodes of a text's first root, and what drafted them otherwise."""
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch)
    decoder = TreeDecoder(backbone, heads, capacity=128)
    decoder.start([1, 3, 5])
    buffers = StaticBuffers(backbone, heads, decoder._cache, decoder._prefix_cache, stages.max_nodes)
    return heads, decoder, buffers, StaticNodes(heads, stages, buffers)


@pytest.mark.parametrize("arch", ["medusa", "hydra", "hydra-prefix"])
@pytest.mark.parametrize("curves", [(), CURVES], ids=["raw", "calibrated"])
@torch.inference_mode()
def test_drafts_are_those_of_the_host(arch, curves):
    stages = Stages("s", SHAPE, (0, SHAPE.nodes), curves)
    heads, decoder, buffers, nodes = prepared(arch, stages)
    table = NodeTable(stages)
    for root in (decoder.root, 7, 11):
        buffers.load(decoder.length, root, decoder.state)
        table.clear()
        for depth in (1, 2, 3):
            if depth == 1:
                last = first_stage(heads, SHAPE, decoder.state[None], torch.tensor([root]))
            else:
                last = next_stage(heads, SHAPE, last)
            table.add(last.values[0].tolist(), last.expanded[0].tolist())
            for _ in range(2):  # twice is once
                nodes.draft(depth)
            known = SHAPE.starts[depth + 1]
            assert nodes.values[:known].tolist() == table.values[:known]
            assert (nodes.values[known:] == UNKNOWN).all()
            assert nodes.order()[: known - 1].tolist() == table._order
            level = slice(*SHAPE.starts[depth : depth + 2])
            assert nodes.tokens[level].tolist() == last.tokens[0].tolist()
            for node in range(known):
                path = [node]
                while path[0]:
                    path.insert(0, int(table.parents[path[0]]))
                path += [node] * (stages.depth + 1 - len(path))
                assert nodes.paths[node].tolist() == path
    assert nodes.paths[-1].tolist() == [nodes.none] * 4
    assert int(nodes.depths[-1]) == -1
