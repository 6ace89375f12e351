import itertools

import pytest
import torch

from entmtp_env.decoding.draft import DraftPlan, draft_tree
from entmtp_env.decoding.draft_shape import DraftShape
from entmtp_env.decoding.staged_draft import first_stage, next_stage
from entmtp_env.trees import DraftTree
from tests.tiny import tiny_backbone, tiny_heads

SHAPE = DraftShape((1, 2, 3, 1), (4, 3, 2, 5))
EVERY = DraftTree("every", tuple(p for d in (1, 2, 3, 4) for p in itertools.product(range(5), repeat=d)))


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra-prefix"])
def heads(request):
    return tiny_heads(tiny_backbone(3), request.param, deep_vocab=17)


@pytest.fixture(scope="module")
def texts(heads):
    torch.manual_seed(0)
    return torch.randn(6, heads.config.hidden_size), torch.arange(3, 9)


def stages_of(heads, states, roots):
    drafted = [first_stage(heads, SHAPE, states, roots)]
    while len(drafted) < SHAPE.depth:
        drafted.append(next_stage(heads, SHAPE, drafted[-1]))
    return drafted


@torch.inference_mode()
def test_stages_are_the_drafts_of_a_whole_tree_below_the_best_nodes(heads, texts):
    plan = DraftPlan(EVERY, None, torch.device("cpu"))
    drafted = stages_of(heads, *texts)
    for number, (state, root) in enumerate(zip(*texts, strict=True)):
        draft = draft_tree(heads, state, root[None], EVERY, plan)
        tokens = dict(zip(EVERY.nodes, draft.tokens.tolist(), strict=True))
        values = dict(zip(EVERY.nodes, draft.path_values().tolist(), strict=True))
        level = [()]
        for d, stage in enumerate(drafted):
            best = sorted(level, key=lambda path: -values.get(path, 1.0))[: SHAPE.expand[d]]
            assert [level[place] for place in stage.expanded[number]] == best
            level = [(*parent, rank) for parent in best for rank in range(SHAPE.children[d])]
            assert stage.depth == d + 1
            assert stage.tokens[number].tolist() == [tokens[path] for path in level]
            assert stage.values[number].tolist() == pytest.approx([values[path] for path in level], rel=1e-5)


@torch.inference_mode()
def test_roots_side_by_side_are_drafted_like_each_alone(heads, texts):
    together = stages_of(heads, *texts)
    for number in range(len(texts[1])):
        alone = stages_of(heads, *(x[number : number + 1] for x in texts))
        for many, one in zip(together, alone, strict=True):
            assert many.expanded[number].equal(one.expanded[0])
            assert many.tokens[number].equal(one.tokens[0])
            torch.testing.assert_close(many.values[number], one.values[0])
