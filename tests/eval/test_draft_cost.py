import math

import pytest

from entmtp_env.decoding import TreeDecoder
from entmtp_env.engine import Engine
from entmtp_env.trees import published_trees
from eval import draft_cost as module
from eval.draft_cost import draft_cost
from tests.tiny import tiny_backbone, tiny_heads


@pytest.fixture
def engine():
    def build(arch, depth=4):
        backbone = tiny_backbone()
        return Engine(backbone, tiny_heads(backbone, arch, depth), None, frozenset({2}), {})

    return build


@pytest.mark.parametrize(("arch", "depth"), [("medusa", 4), ("hydra", 2), ("hydra-prefix", 4), ("medusa", 6)])
def test_shares_are_of_the_autoregressive_step(engine, arch, depth):
    cost = draft_cost(engine(arch, depth), [3, 4, 5], steps=3)
    assert cost.step > 0
    assert len(cost.depths) == min(depth, 4)
    assert sum(cost.depths) == pytest.approx(cost.tree)
    assert cost.share == pytest.approx((cost.prefix[1] + cost.tree) / cost.step)
    assert cost.share_of_depths == pytest.approx([seconds / cost.step for seconds in cost.depths])
    assert all(seconds > 0 for seconds in cost.prefix) == (arch == "hydra-prefix")
    assert all(math.isfinite(seconds) for seconds in cost.depths)


def test_what_is_timed(engine, monkeypatch):
    """On a clock that counts: drafted nodes, rows of the prefix layer and decode steps."""
    clock, seen = [0.0], []
    engine = engine("hydra-prefix")
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    probe, step, forward = TreeDecoder.probe, TreeDecoder.step, engine.heads.prefix.forward

    def spend(seconds, work):
        def timed(*arguments):
            result = work(*arguments)
            clock[0] += seconds(*arguments)
            seen.append(seconds(*arguments))
            return result

        return timed

    monkeypatch.setattr(TreeDecoder, "probe", spend(lambda _, tree: len(tree) / 10, probe))
    monkeypatch.setattr(TreeDecoder, "step", spend(lambda _, tree: 1000 + len(tree), step))
    monkeypatch.setattr(engine.heads.prefix, "forward", spend(lambda hidden, _: hidden.shape[1], forward))
    cost = draft_cost(engine, [3, 4, 5], steps=4)
    # A plain step runs no prefix layer.
    assert cost.step == pytest.approx(1000)
    assert cost.prefix == pytest.approx([1, 3])
    assert cost.tree == pytest.approx(6.3)
    depths = [len(node) for node in published_trees()["hydra-default"].nodes]
    assert cost.depths == pytest.approx([depths.count(depth) / 10 for depth in (1, 2, 3, 4)])
    assert sum(cost.depths) == pytest.approx(6.3)
    assert cost.share == pytest.approx(9.3 / 1000)


def test_a_prompt_that_leaves_no_room_is_refused(engine):
    with pytest.raises(ValueError, match="positions of this model"):
        draft_cost(engine("medusa"), [3] * 460, steps=3)
