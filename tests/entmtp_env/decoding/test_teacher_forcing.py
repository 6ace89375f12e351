import pytest
import torch

from entmtp_env.decoding.teacher_forcing import path_inputs, root_states, true_paths
from tests.tiny import tiny_backbone, tiny_heads

TOKENS = torch.tensor([[7, 8, 9, 4, 5], [3, 6, 1, 0, 0]])
ROOTS = torch.tensor([[False, False, True, True, True], [False, True, True, False, False]])


def test_true_paths_end_with_the_reply():
    assert true_paths(TOKENS, ROOTS, 2).tolist() == [
        [9, 4, 5],
        [4, 5, -1],
        [5, -1, -1],
        [6, 1, -1],
        [1, -1, -1],
    ]


def test_a_root_is_drafted_from_the_state_of_the_token_before_it():
    backbone = tiny_backbone()
    hidden = torch.randn(2, 5, backbone.config.hidden_size)
    heads = tiny_heads(backbone, "hydra")
    expected = torch.stack([hidden[0, 1], hidden[0, 2], hidden[0, 3], hidden[1, 0], hidden[1, 1]])
    assert torch.equal(root_states(heads, hidden, ROOTS), expected)
    with torch.inference_mode():
        heads = tiny_heads(backbone, "hydra-prefix")
        refined = root_states(heads, hidden, ROOTS)
        torch.testing.assert_close(refined[3], heads.prefix(hidden[1:, :1])[0, 0])


@pytest.mark.parametrize(("arch", "depth"), [("medusa", 1), ("medusa", 3), ("hydra", 1), ("hydra", 3)])
def test_inputs_have_the_width_that_the_head_reads(arch, depth):
    backbone = tiny_backbone()
    heads = tiny_heads(backbone, arch)
    states, paths = torch.randn(4, backbone.config.hidden_size), torch.arange(12).view(4, 3)[:, :depth]
    inputs = path_inputs(heads, states, paths)
    assert inputs.shape == (4, heads.inputs(depth) * backbone.config.hidden_size)
    assert torch.equal(inputs[:, : backbone.config.hidden_size], states)
    if arch == "hydra":
        assert torch.equal(inputs[:, -backbone.config.hidden_size :], heads.embed(paths[:, -1]))
