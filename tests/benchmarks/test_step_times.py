import pytest
import torch

from benchmarks.step_times import ROUNDS, copy_bandwidth, step_bytes, time_steps, time_switching
from entmtp_env.decoding import TreeDecoder
from entmtp_env.trees import AUTOREGRESSIVE, DraftTree
from tests.tiny import tiny_backbone, tiny_heads, tiny_model

CHAIN = DraftTree.chain(2)


class Ticking(TreeDecoder):
    """A step of a tree takes a second more than it has nodes, and ten more behind another tree."""

    last, starts = None, ()

    def start(self, prompt, *args, **settings):
        super().start(prompt, *args, **settings)
        self.starts = (*self.starts, len(prompt))
        return float(len(prompt))

    def step(self, tree):
        step = super().step(tree)
        seconds = 1.0 + len(tree) + (10 if tree is not self.last else 0)
        self.last = tree
        return type(step)(**(vars(step) | {"seconds": seconds, "draft_seconds": 0.5, "verify_seconds": 0.25}))


@pytest.fixture
def decoder():
    backbone = tiny_backbone()
    return Ticking(backbone, tiny_heads(backbone), capacity=128)


def test_steps_are_timed_by_tree_and_context_and_the_first_of_a_visit_is_not(decoder):
    visits = []
    trees, contexts = [AUTOREGRESSIVE, CHAIN, DraftTree.chain(3)], [4, 20]
    steps, prefill = time_steps(decoder, trees, contexts, 2, lambda: visits.append(1))
    assert len(visits) == ROUNDS * 6
    assert steps.shape == (ROUNDS * 2, 3, 2, 3)
    for k, tree in enumerate(trees):
        assert (steps[:, k, :, 0] == 1 + len(tree)).all()
    assert (steps[..., 1] == 0.5).all()
    assert (steps[..., 2] == 0.25).all()
    assert (prefill == contexts).all()
    assert sorted(decoder.starts) == [4] * 3 * ROUNDS + [20] * 3 * ROUNDS


def test_switching_is_compared_with_staying(decoder):
    # A pair by itself takes 2 and 6 seconds; in turns 1 + 3 and 10 for each switch.
    ratios = time_switching(decoder, (AUTOREGRESSIVE, CHAIN), [4, 20], 3, lambda: None)
    assert ratios == [pytest.approx(24 / 4)] * 2


@pytest.mark.parametrize("arch", ["medusa", "hydra-prefix"])
def test_bytes_of_a_step_are_those_of_all_weights_but_the_embeddings_and_of_the_cache(arch):
    backbone, model = tiny_backbone(), tiny_model()
    heads = tiny_heads(backbone, arch, pack=False)
    layers = [p for name, p in model.named_parameters() if "embed_tokens" not in name]
    layers += [] if heads.prefix is None else list(heads.prefix.parameters())
    weights = sum(p.nbytes for p in layers)
    caches = [backbone.new_cache(40)] + ([] if heads.prefix is None else [heads.prefix.new_cache(40)])
    assert step_bytes(backbone, heads, 0) == weights
    assert step_bytes(backbone, heads, 40) == weights + sum(cache._data.nbytes for cache in caches)
    if heads.prefix is not None:
        weights -= sum(p.nbytes for p in heads.prefix.parameters())
    assert step_bytes(backbone, None, 40) == weights + caches[0]._data.nbytes


def test_bandwidth_counts_reading_and_writing(monkeypatch):
    times = iter(range(100))
    monkeypatch.setattr("benchmarks.step_times.time.perf_counter", lambda: float(next(times)))
    assert copy_bandwidth(torch.device("cpu"), 4096) == 8192
