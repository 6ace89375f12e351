import numpy as np
import pytest

from benchmarks.scaling import Scaling, Sizes, growth, measure_scaling
from benchmarks.scaling_plot import scaling_figure
from entmtp_env.engine import get_engine
from entmtp_env.prompts import load_prompts

SIZES = Sizes(contexts=(20, 8), nodes=(5, 0, 5), batches=(1, 3), num_envs=(2,))


def test_sizes_are_sorted_without_doubles():
    assert (SIZES.contexts, SIZES.nodes) == ((8, 20), (0, 5))


@pytest.mark.parametrize(
    ("name", "sizes"), [("contexts", ()), ("nodes", (-1, 3)), ("batches", (0,)), ("num_envs", (0, 4))]
)
def test_what_is_no_size_is_refused(name, sizes):
    settings = {"contexts": (8,), "nodes": (0,), "batches": (1,), "num_envs": (1,)}
    with pytest.raises(ValueError, match=f"{name} must be numbers of at least"):
        Sizes(**(settings | {name: sizes}))


def test_growth_is_the_steepest_exponent():
    sizes = np.array([1, 2, 8, 16])
    power = 3.0 * sizes[:, None] ** np.array([1.0, 2.0, 0.5])
    assert growth(sizes, power) == pytest.approx((1, 0.5, 2))
    # Linear with a constant part stays below 1; one jump shows.
    assert growth(sizes, (5.0 + sizes)[:, None])[0] < 1
    assert growth(sizes, np.array([1.0, 1, 1, 8])[:, None])[0] == pytest.approx(3)
    assert np.isnan(growth([4], np.ones((1, 2)))).all()


def test_a_tiny_model_is_measured_at_all_sizes(tiny_files):
    engine = get_engine(tiny_files.model, tiny_files.heads, "float32", "cpu")
    found = measure_scaling(engine, load_prompts(tiny_files.prompts), SIZES, max_new_tokens=6, repeats=1)
    shapes = [getattr(found, name).shape for name in ("seconds", "prefill_seconds", "recorded", "replayed")]
    assert shapes == [(2, 2), (2,), (2,), (1,)]
    assert found.document()["contexts"] == (8, 20)
    assert np.array(found.document()["seconds"]) == pytest.approx(found.seconds)
    with pytest.raises(ValueError, match="this model has 512 positions"):
        measure_scaling(engine, [], Sizes((500,), (20,), (1,), (1,)), 6, 1)


def test_the_figure_shows_costs_and_rates():
    found = Scaling(
        sizes=SIZES,
        seconds=np.array([[0.01, 0.02], [0.03, 0.05]]),
        prefill_seconds=np.array([0.1, 0.3]),
        recorded=np.array([40.0, 90]),
        replayed=np.array([5e4]),
    )
    by_context, by_nodes, relative, prefill, recording, replay = scaling_figure(found).axes

    def lines(axes):
        return {line.get_label(): line.get_ydata().tolist() for line in axes.lines}

    assert lines(by_context)["5 nodes"] == pytest.approx([30, 50])
    assert lines(by_nodes)["20 tokens"] == pytest.approx([20, 50])
    assert lines(relative)["8 tokens"] == pytest.approx([1, 3])
    assert prefill.lines[0].get_ydata().tolist() == pytest.approx([100, 300])
    assert recording.lines[0].get_ydata().tolist() == [40, 90]
    assert replay.get_yscale() == "log"
