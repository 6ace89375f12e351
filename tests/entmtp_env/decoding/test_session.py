import pytest

from entmtp_env.decoding import TreeDecoder
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.prompt_lookup import PromptLookupDecoder
from entmtp_env.decoding.staged import StagedDecoder
from entmtp_env.decoding.stages import Stages
from entmtp_env.trees import DraftTree
from tests.tiny import tiny_backbone, tiny_heads

STAGES = Stages("tiny", DraftShape((1, 1), (2, 2)), (0, 2))


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


def trees(backbone, clock):
    decoder = TreeDecoder(backbone, tiny_heads(backbone), capacity=96, clock=clock)
    return decoder, lambda: decoder.step(DraftTree.chain(2))


def lookup(backbone, clock):
    decoder = PromptLookupDecoder(backbone, capacity=96, clock=clock)
    return decoder, lambda: decoder.step(DraftTree.chain(2))


def staged(backbone, clock):
    decoder = StagedDecoder(backbone, tiny_heads(backbone), STAGES, capacity=96, clock=clock)

    def step():
        decoder.deepen()
        return decoder.verify_best(2)

    return decoder, step


@pytest.mark.parametrize("make", [trees, lookup, staged])
def test_every_part_of_a_step_has_its_own_time(backbone, make):
    draft = [0.0, 1.0, 1.0] if make is staged else [0.0, 1.0]
    times = iter([0.0, 0.0, *draft, 11.0, 111.0, 1111.0])
    decoder, step = make(backbone, lambda: next(times))
    decoder.start([3, 4, 3])
    own = step()
    parts = (own.draft_seconds, own.verify_seconds, own.accept_seconds, own.commit_seconds)
    assert parts == (1.0, 10.0, 100.0, 1000.0)
    assert own.seconds == sum(parts)
    assert next(times, None) is None
