import itertools
import struct

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from entmtp_env.figures import save_figure
from entmtp_env.trees import default_bank
from eval.plot import comparison_figure
from eval.summary import summarise

TREES = tuple(f"tree{k}" for k in range(10))
LONG = "mypkg.mymodule:MyPolicy,score=deep_path_value,on=0.4,off=0.3,small=tree-4x2,large=tree-31x4"


@pytest.fixture
def sets(episode):
    def build(policies, names, prompts=4):
        draw = np.random.default_rng(0)

        def texts():
            steps = [
                [(int(draw.integers(10)), 2, draw.uniform(0.1, 0.4)) for _ in range(9)]
                for _ in range(prompts)
            ]
            return [episode(f"q{i}", *own) for i, own in enumerate(steps)]

        policies = ("autoregressive", *policies)
        return {
            name: summarise({policy: texts() for policy in policies}, "autoregressive", samples=50)
            for name in names
        }

    return build


def overlaps(figure):
    """Pairs of visible texts whose boxes intersect, and texts that leave the picture."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    # Ticks beyond the limits exist, but are not drawn.
    hidden = {
        tick.label1
        for axes in figure.axes
        for tick in axes.xaxis.get_major_ticks()
        if not axes.get_xlim()[0] <= tick.get_loc() <= axes.get_xlim()[1]
    }
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
    boxes = {t: t.get_window_extent(renderer) for t in texts}
    width, height = figure.bbox.size
    outside = [t.get_text() for t, b in boxes.items() if min(b.x0, b.y0) < 0 or b.x1 > width or b.y1 > height]
    pairs = [
        (a.get_text(), b.get_text())
        for a, b in itertools.combinations(boxes, 2)
        if boxes[a].overlaps(boxes[b])
    ]
    return pairs, outside


@pytest.mark.parametrize(
    ("policies", "names"),
    [
        ((), ("chat",)),
        (("random", LONG), ("chat",)),
        (
            (LONG, "threshold", "ladder", "random", "hydra-default"),
            ("chat:evaluation", "math", "a/long/path.jsonl"),
        ),
    ],
)
def test_no_text_overlaps(sets, policies, names):
    assert overlaps(comparison_figure(sets(policies, names), TREES)) == ([], [])


def test_it_shows_the_ratios_and_the_shares(sets):
    summaries = sets(("random",), ("chat", "math"))
    speed, share = comparison_figure(summaries, TREES).axes
    for (points, *_), rows in zip(speed.containers, summaries.values(), strict=True):
        assert points.get_xdata().tolist() == [row.rho.value for row in rows]
    assert [label.get_text() for label in speed.get_yticklabels()] == ["autoregressive", "random"]
    widths = np.array([[bar.get_width() for bar in bars] for bars in share.containers])
    first, second = np.split(widths, 2)
    assert first.sum(axis=0) == pytest.approx(1)
    assert second.sum(axis=0) == pytest.approx(1)
    row = summaries["math"][1]
    assert second[3, 1] == pytest.approx(row.trees.get("tree3", 0) / row.steps)


def test_one_prompt_and_an_empty_file_name_still_make_a_picture(sets, tmp_path):
    path = tmp_path / "plot.png"
    save_figure(path, comparison_figure(sets(("random",), ("chat",), prompts=1), TREES))
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1000
    assert height > 300
    assert [p.name for p in tmp_path.iterdir()] == ["plot.png"]


def test_only_trees_that_were_used_are_in_the_legend_in_the_order_of_the_bank(episode):
    names = default_bank().names
    (row,) = summarise({"autoregressive": [episode("a", (3, 1, 0.1), (1, 1, 0.1))]}, "autoregressive")
    figure = comparison_figure({"chat": [row]}, ("tree9", "tree3", "tree2", "tree1", *names))
    assert [text.get_text() for text in figure.legends[1].get_texts()] == ["tree3", "tree1"]


def test_rows_are_told_apart_by_where_their_files_are(sets):
    specs = ("ladder@a/ladder.json", "ladder@b/ladder.json")
    speed, _ = comparison_figure(sets(specs, ("chat",)), TREES).axes
    assert [label.get_text() for label in speed.get_yticklabels()] == ["autoregressive", *specs]
