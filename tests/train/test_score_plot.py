import numpy as np
import pytest

from entmtp_env.trees import DraftTree, TopologyBank
from policies.ladder import Ladder
from policies.threshold import Threshold
from tests.fake_env import FakeEnv
from train.candidates import StaticRuns
from train.score_plot import score_figure

BANK = TopologyBank([DraftTree.chain(1), DraftTree.chain(2), DraftTree.chain(3)])


@pytest.fixture
def runs():
    rng = np.random.default_rng(0)
    scores = {name: {"base_top1": rng.random(40 + 10 * k)} for k, name in enumerate(BANK.names)}
    return StaticRuns(BANK, {}, scores)


def test_each_policy_has_its_histograms_and_thresholds(runs):
    env = FakeEnv(bank=BANK)
    figure = score_figure(
        runs,
        [
            Threshold(env, small="chain-1", large="chain-3", score="base_top1", on=0.6, off=0.2),
            Ladder(env, edges=(0.3, 0.7), score="base_top1"),
        ],
    )
    figure.draw_without_rendering()
    threshold, ladder = figure.axes
    assert [line.get_xdata()[0] for line in threshold.lines] == [0.6, 0.2]
    assert [line.get_xdata()[0] for line in ladder.lines] == [0.3, 0.7]
    for axes, trees in ((threshold, ("chain-1", "chain-3")), (ladder, ("chain-1", "chain-2", "chain-3"))):
        outlines = {patch.get_label(): patch.get_xy() for patch in axes.patches}
        assert set(outlines) == set(trees)
        for tree, outline in outlines.items():
            edges = np.unique(outline[:, 0])
            # Of the two corners at each edge, the second is the height of the bin to its right.
            heights = outline[1:-1:2, 1]
            counts = np.histogram(runs.scores[tree]["base_top1"], edges)[0]
            np.testing.assert_allclose(heights, counts / counts.sum())
    labels = {text.get_text() for text in threshold.get_legend().get_texts()}
    assert labels == {"chain-1", "chain-3", "τ_on = 0.6", "τ_off = 0.2"}
    assert [text.get_text() for text in ladder.get_legend().get_texts()].count("edges") == 1
