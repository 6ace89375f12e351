from random import Random

import pytest
import torch

from entmtp_env.decoding.draft import DraftPlan, draft_tree
from entmtp_env.replay import candidates
from entmtp_env.replay.candidates import check_candidates, path_values
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree, default_bank
from tests.tiny import VOCAB, random_tree, tiny_backbone, tiny_heads

ROOTS = 23


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra-prefix", "deep-vocab"])
def heads(request):
    if request.param == "deep-vocab":
        return tiny_heads(tiny_backbone(), "hydra", deep_vocab=12)
    return tiny_heads(tiny_backbone(), request.param)


@pytest.mark.parametrize(("roots", "rows"), [(256, 128), (5, 3), (1, 1)])
def test_values_are_those_of_each_draft(heads, monkeypatch, roots, rows):
    monkeypatch.setattr(candidates, "_ROOTS", roots)
    monkeypatch.setattr(candidates, "_ROWS", rows)
    random, generator = Random(0), torch.Generator().manual_seed(0)
    states = torch.randn(ROOTS, heads.config.hidden_size, generator=generator)
    tokens = torch.randint(VOCAB, (ROOTS,), generator=generator)
    trees = [random_tree(random, 1 + random.randrange(40), ranks=9) for _ in range(4)]
    for tree in (default_bank().union, DraftTree.chain(3), AUTOREGRESSIVE, *trees):
        with torch.inference_mode():
            values = path_values(heads, states, tokens, tree)
            plan = DraftPlan(tree, None, states.device)
            expected = [
                draft_tree(heads, states[i], tokens[i : i + 1], tree, plan).path_values()
                for i in range(ROOTS)
            ]
        torch.testing.assert_close(values, torch.stack(expected), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("node", [(0, 0, 0, 0, 0), (VOCAB - 4,), (0, 12)])
def test_what_cannot_be_drafted_is_refused(node):
    heads = tiny_heads(tiny_backbone(), "hydra", deep_vocab=12)
    siblings = [(*node[:-1], rank) for rank in range(node[-1] + 1)]
    above = [node[:depth] for depth in range(1, len(node))]
    with pytest.raises(ValueError, match=r"4 heads .* 20 tokens, the deeper ones from 12; give a smaller"):
        check_candidates(heads, DraftTree("wide", (*above, *siblings)))
    check_candidates(
        heads, DraftTree("narrower", tuple(above if len(node) == 5 else [*above, *siblings[:-1]]))
    )
