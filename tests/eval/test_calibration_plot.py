import numpy as np
import pytest

from eval.calibration import Calibration, Reliability, reliability
from eval.calibration_plot import calibration_figure
from tests.eval.test_plot import overlaps


def random_calibration(seed, depth=4):
    draw = np.random.default_rng(seed)

    def diagram():
        stated = draw.random(300)
        return reliability(stated, draw.random(300) < stated)

    return Calibration([diagram() for _ in range(depth)], [diagram() for _ in range(depth)])


@pytest.mark.parametrize(
    "names", [("auto",), ("auto", "runs/a/very/long/path/to/some/heads-of-mine.safetensors")]
)
def test_no_text_overlaps(names):
    assert overlaps(calibration_figure({name: random_calibration(i) for i, name in enumerate(names)})) == (
        [],
        [],
    )


def test_it_shows_every_depth():
    own = random_calibration(0, depth=3)
    confidence, path_value = calibration_figure({"auto": own}).axes
    for axes, diagrams in ((confidence, own.confidence), (path_value, own.path_value)):
        _, *lines = axes.get_lines()
        assert [(list(line.get_xdata()), list(line.get_ydata())) for line in lines] == [
            (diagram.stated, diagram.observed) for diagram in diagrams
        ]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [
            f"depth {i + 1}, error {diagram.error:.3f}" for i, diagram in enumerate(diagrams)
        ]


def test_a_depth_without_predictions_is_an_empty_line():
    own = Calibration([Reliability([], [], 0.0, 0)], [Reliability([], [], 0.0, 0)])
    assert len(calibration_figure({"auto": own}).axes) == 2
